#include "command.h"

#include <CLI/CLI.hpp>

#include "base/cat.h"
#include "base/cgroup.h"
#include "base/cpu_topology.h"

namespace tandem::app {

void add_common_flags(CLI::App* command, CommonFlags& flags) {
  command->add_flag("--json", flags.json, "print JSON only on stdout");
  command->add_option("--threads", flags.num_threads, "threads to compute with (default: one for each core)")
      ->check(CLI::Range(1, 1024));
  command->add_option("--cpus", flags.cpus,
                      "processors to bind the threads to, as 0-7,16 (default: bound, one cache after the other, where "
                      "there are several third-level caches or memory nodes)");
  command->add_option("--kernels", flags.kernels, "ref | portable | avx2 | avx512 | amx | auto")
      ->check(CLI::IsMember({"ref", "portable", "neon", "avx2", "avx512", "amx", "auto"}))
      ->capture_default_str();
}

Result<ThreadPlacement> resolve_threads(const CommonFlags& flags) {
  ThreadWish wish;
  if (flags.num_threads > 0) wish.num_threads = flags.num_threads;
  if (!flags.cpus.empty()) {
    wish.cpus = parse_cpu_list(flags.cpus);
    if (!wish.cpus) {
      return Status::invalid(cat("--cpus: expected processors such as 0-7,16, found \"", flags.cpus, "\""));
    }
  }
  std::optional<double> quota;
  if (const std::optional<CpuQuota> found = cgroup_cpu_quota(std::string(kCgroupRoot), read_cgroup_membership())) {
    quota = found->cpus;
  }
  return place_threads(read_cpu_topology("/sys", allowed_cpus()), quota, wish);
}

}  // namespace tandem::app
