// apps/tandem/command.h: what the subcommands of `tandem` share. Each cmd_<name>.cpp registers one subcommand.
#pragma once

#include <cstdint>
#include <string>

#include "command_line.h"

namespace tandem::app {

inline constexpr int64_t kMaxCount = int64_t{1} << 40;  // of tokens or repeats on a command line

struct CommonFlags {
  bool json = false;
  int num_threads = 0;  // 0: one for each core
  std::string kernels = "auto";
};

// Adds --json, --threads and --kernels to a subcommand.
void add_common_flags(CLI::App* command, CommonFlags& flags);

// The number of threads to use: the flag, or what this process may run on.
int resolve_num_threads(const CommonFlags& flags);

// Each adds its subcommand; when it is chosen, `exit_code` receives the result.
void register_run(CLI::App& app, int& exit_code);
void register_score(CLI::App& app, int& exit_code);
void register_tokenize(CLI::App& app, int& exit_code);
void register_inspect(CLI::App& app, int& exit_code);
void register_init(CLI::App& app, int& exit_code);
void register_bench(CLI::App& app, int& exit_code);
void register_serve(CLI::App& app, int& exit_code);
void register_doctor(CLI::App& app, int& exit_code);

}  // namespace tandem::app
