// apps/tandem/command.h: what the subcommands of `tandem` share. Each cmd_<name>.cpp registers one subcommand.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/thread_placement.h"
#include "command_line.h"

namespace tandem::app {

inline constexpr int64_t kMaxCount = int64_t{1} << 40;  // of tokens or repeats on a command line

struct CommonFlags {
  bool json = false;
  int num_threads = 0;  // 0: by the machine
  std::string cpus;     // "0-7,16"; empty: by the machine
  std::string kernels = "auto";
};

// Adds --json, --threads, --cpus and --kernels to a subcommand.
void add_common_flags(CLI::App* command, CommonFlags& flags);

// How many threads compute and where: the flags, or what suits this machine (base/thread_placement.h).
Result<ThreadPlacement> resolve_threads(const CommonFlags& flags);

// Each adds its subcommand; when it is chosen, `exit_code` receives the result.
void register_run(CLI::App& app, int& exit_code);
void register_score(CLI::App& app, int& exit_code);
void register_tokenize(CLI::App& app, int& exit_code);
void register_inspect(CLI::App& app, int& exit_code);
void register_init(CLI::App& app, int& exit_code);
void register_bench(CLI::App& app, int& exit_code);
void register_plan(CLI::App& app, int& exit_code);
void register_serve(CLI::App& app, int& exit_code);
void register_trace(CLI::App& app, int& exit_code);
void register_doctor(CLI::App& app, int& exit_code);

}  // namespace tandem::app
