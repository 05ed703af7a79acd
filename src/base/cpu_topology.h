// base/cpu_topology.h: the processors this process may run on and what they share: cores, caches, memory nodes, as
// Linux states it in /sys. Pure functions of the files under a root, so that tests bring their own machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

using CpuList = std::vector<int>;  // ascending

// "0-3,8" ↔ {0, 1, 2, 3, 8}; none when the text is no list.
std::optional<CpuList> parse_cpu_list(std::string_view text);
std::string cpu_list_text(const CpuList& cpus);

CpuList allowed_cpus();  // by the scheduler's affinity mask

// Each group holds allowed processors only and is not empty; groups in the order of their first processor. A processor
// whose files are missing is in no group.
struct CpuTopology {
  CpuList allowed;
  std::vector<CpuList> cores;  // SMT siblings together
  std::vector<CpuList> l2;     // sharing a second-level cache
  std::vector<CpuList> l3;     // sharing a third-level cache: a CCD, or a socket
  int64_t l2_bytes = 0;        // of one of them; 0: unknown
  int64_t l3_bytes = 0;
  std::vector<CpuList> numa_nodes;
};
CpuTopology read_cpu_topology(const std::string& sys_root, CpuList allowed);

// The chosen word of "always [madvise] never"; empty when the kernel has no such setting.
std::string transparent_huge_pages(const std::string& sys_root);

struct CpuModel {
  std::string name;                // "AMD EPYC 9654 96-Core Processor"; empty when not stated
  std::vector<std::string> flags;  // of the first processor, sorted
  bool has(std::string_view flag) const;
};
CpuModel parse_cpuinfo(std::string_view text);  // of /proc/cpuinfo

}  // namespace tandem
