// base/cgroup.h: the control groups that a process is in, versions 1 and 2, and the processor time they leave it.
// Pure functions of the files under a root, so that tests bring their own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/function_ref.h"

namespace tandem {

inline constexpr std::string_view kCgroupRoot = "/sys/fs/cgroup";

std::string read_cgroup_membership();  // the text of /proc/self/cgroup; empty when there is none

enum class CgroupVersion { kOne, kTwo };

// Visits the folder of every group under `root` that `controller` ("memory", "cpu") accounts this process to, by
// `membership`: the process's own first, then each one above it. A folder need not exist: inside a container the path
// is the host's.
void for_each_cgroup(const std::string& root, const std::string& membership, std::string_view controller,
                     FunctionRef<void(const std::string& folder, CgroupVersion version)> visit);

// The first number in a group's file; none: no such file, or no limit.
std::optional<int64_t> read_cgroup_number(const std::string& path);

struct CpuQuota {
  double cpus = 0.0;   // processors' worth of time
  std::string folder;  // of the group that sets it
};
// The tightest quota of the process's groups: cpu.max, or cpu.cfs_quota_us over cpu.cfs_period_us. None: no quota.
std::optional<CpuQuota> cgroup_cpu_quota(const std::string& root, const std::string& membership);

}  // namespace tandem
