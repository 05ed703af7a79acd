// tandem init: a valid random checkpoint from a config.json (weights/random_init.h).
#include <CLI/CLI.hpp>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>

#include "base/cat.h"
#include "base/read_file.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "command.h"
#include "progress_line.h"
#include "size_text.h"
#include "weights/random_init.h"

namespace tandem::app {
namespace {

struct InitFlags {
  CommonFlags common;
  std::string config_path;
  std::string output_dir;
  std::string shard_size;
  InitOptions options;
};

std::string gigabytes(uint64_t bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f GB", static_cast<double>(bytes) * 1e-9);
  return text.data();
}

void print_report(const InitFlags& flags, const InitReport& report, double seconds) {
  if (!report.has_tokenizer) {
    std::fprintf(stderr,
                 "tandem: no tokenizer files: a vocabulary of %lld ids cannot hold the 256 single bytes (or exceeds "
                 "the three-byte strings); use --tokens\n",
                 static_cast<long long>(report.vocab_size));
  }
  if (flags.common.json) {
    const nlohmann::ordered_json document = {{"output", flags.output_dir},
                                             {"seed", flags.options.seed},
                                             {"tensors", report.num_tensors},
                                             {"bytes", report.tensor_bytes},
                                             {"shards", report.num_shards},
                                             {"vocab_size", report.vocab_size},
                                             {"tokenizer", report.has_tokenizer},
                                             {"headers_only", flags.options.headers_only},
                                             {"seconds", seconds}};
    std::printf("%s\n", document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    return;
  }
  std::printf("%s: %lld tensors, %llu bytes in %lld shard%s, %s%s, seed %llu (%.1f s)\n", flags.output_dir.c_str(),
              static_cast<long long>(report.num_tensors), static_cast<unsigned long long>(report.tensor_bytes),
              static_cast<long long>(report.num_shards), report.num_shards == 1 ? "" : "s",
              report.has_tokenizer ? "toy tokenizer" : "no tokenizer",
              flags.options.headers_only ? ", headers only" : "", static_cast<unsigned long long>(flags.options.seed),
              seconds);
}

std::atomic<bool> cancelled{false};  // a handler can reach nothing but a global
static_assert(std::atomic<bool>::is_always_lock_free);
void cancel_on_signal(int) { cancelled.store(true); }

int run_init(InitFlags& flags) {
  if (!flags.shard_size.empty()) {
    flags.options.shard_bytes = parse_size(flags.shard_size);
    if (!flags.options.shard_bytes) {
      (void)report_error(Status::invalid(cat(
          "--shard-size: expected a positive size such as 500MB, 4GiB or 1000000, found \"", flags.shard_size, "\"")));
      return kExitUsage;
    }
  }
  const auto config = read_file(flags.config_path, "a JSON configuration file");
  if (!config.is_ok()) return report_error(config.status());
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, cancel_on_signal);
  flags.options.cancel = &cancelled;
  const auto start = std::chrono::steady_clock::now();
  const Result<ThreadPlacement> threads = resolve_threads(flags.common);
  if (!threads.is_ok()) return report_error(threads.status());
  ThreadPool pool(threads.value().num_threads, threads.value().cpus);
  const auto report = [&] {
    ProgressLine progress;
    return init_random_checkpoint(config.value(), flags.config_path, flags.output_dir, flags.options, pool,
                                  [&](uint64_t done, uint64_t total) {
                                    if (!progress.is_due()) return;
                                    progress.show(cat("tandem: ", gigabytes(done), " of ", gigabytes(total)));
                                  });
  }();
  if (!report.is_ok()) return report_error(report.status());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  print_report(flags, report.value(), seconds.count());
  return kExitOk;
}

}  // namespace

void register_init(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<InitFlags>();  // shared: CLI11 keeps the callback, and with it the flags
  CLI::App* command = app.add_subcommand("init", "Write a valid random checkpoint for a configuration.");
  command->add_option("CONFIG", flags->config_path, "config.json of either family")->required();
  command->add_option("--output", flags->output_dir, "Folder to write, new or empty")->required();
  command->add_option("--seed", flags->options.seed, "Same seed, same files")->capture_default_str();
  command->add_option("--shard-size", flags->shard_size,
                      "Largest shard, such as 500MB or 4GiB (default 5GB, more for above 475 GB)");
  command->add_flag("--headers-only", flags->options.headers_only,
                    "Complete headers and sparse, zero data: any shape on any disk");
  command->add_flag("--force", flags->options.overwrite, "Replace the checkpoint in a folder that is not empty");
  add_common_flags(command, flags->common);
  command->footer(
      "Example:\n  tandem init configs/k3-mini.json --output models/k3-mini --seed 1\n"
      "  tandem init configs/k3.json --output models/k3-shape --headers-only");
  command->callback([flags, &exit_code] { exit_code = run_init(*flags); });
}

}  // namespace tandem::app
