#include "command.h"

#include <CLI/CLI.hpp>
#include <thread>

namespace tandem::app {

void add_common_flags(CLI::App* command, CommonFlags& flags) {
  command->add_flag("--json", flags.json, "print JSON only on stdout");
  command->add_option("--threads", flags.num_threads, "threads to compute with (default: every core)")
      ->check(CLI::Range(1, 1024));
  command->add_option("--kernels", flags.kernels, "ref | portable | avx2 | avx512 | auto")
      ->check(CLI::IsMember({"ref", "portable", "avx2", "avx512", "auto"}))
      ->capture_default_str();
}

int resolve_num_threads(const CommonFlags& flags) {
  if (flags.num_threads > 0) return flags.num_threads;
  const unsigned cores = std::thread::hardware_concurrency();
  return cores == 0 ? 1 : static_cast<int>(cores);
}

}  // namespace tandem::app
