#include "base/cgroup.h"

#include <fstream>
#include <iterator>
#include <sstream>

#include "base/cat.h"

namespace tandem {
namespace {

// A version 1 group without a limit states a number near 2^63.
constexpr int64_t kNoLimit = int64_t{1} << 60;

std::optional<double> quota_of(const std::string& folder, CgroupVersion version) {
  if (version == CgroupVersion::kTwo) {
    std::ifstream file(cat(folder, "/cpu.max"));  // "<quota or max> <period>"
    int64_t quota = 0, period = 0;
    if (!(file >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
    return static_cast<double>(quota) / static_cast<double>(period);
  }
  const std::optional<int64_t> quota = read_cgroup_number(cat(folder, "/cpu.cfs_quota_us"));  // −1: none
  const std::optional<int64_t> period = read_cgroup_number(cat(folder, "/cpu.cfs_period_us"));
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

}  // namespace

std::string read_cgroup_membership() {
  std::ifstream groups("/proc/self/cgroup");
  return {std::istreambuf_iterator<char>(groups), std::istreambuf_iterator<char>()};
}

std::optional<int64_t> read_cgroup_number(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (!(file >> value) || value >= kNoLimit) return std::nullopt;
  return value;
}

void for_each_cgroup(const std::string& root, const std::string& membership, std::string_view controller,
                     FunctionRef<void(const std::string& folder, CgroupVersion version)> visit) {
  const std::string wanted = cat(",", controller, ",");
  std::istringstream lines(membership);
  std::string line;
  while (std::getline(lines, line)) {
    // hierarchy:controllers:path; version 2 is hierarchy 0 without controllers.
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = cat(",", line.substr(first + 1, second - first - 1), ",");
    const bool is_version_2 = controllers == ",,";
    if (!is_version_2 && controllers.find(wanted) == std::string::npos) continue;
    const std::string base = is_version_2 ? root : cat(root, "/", controller);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    while (true) {
      visit(cat(base, path), is_version_2 ? CgroupVersion::kTwo : CgroupVersion::kOne);
      const size_t slash = path.rfind('/');
      if (slash == std::string::npos) break;
      path.resize(slash);
    }
  }
}

std::optional<CpuQuota> cgroup_cpu_quota(const std::string& root, const std::string& membership) {
  std::optional<CpuQuota> tightest;
  for_each_cgroup(root, membership, "cpu", [&](const std::string& folder, CgroupVersion version) {
    const std::optional<double> cpus = quota_of(folder, version);
    if (cpus && (!tightest || *cpus < tightest->cpus)) tightest = CpuQuota{*cpus, folder};
  });
  return tightest;
}

}  // namespace tandem
