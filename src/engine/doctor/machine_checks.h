// engine/doctor/machine_checks.h: whether the processor and the memory of this machine are used as well as they can be.
// The judgements are pure functions of the facts, so that tests bring machines that are not there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/cgroup.h"
#include "base/cpu_topology.h"
#include "base/function_ref.h"
#include "base/thread_placement.h"
#include "engine/doctor/doctor_check.h"
#include "engine/memory_info.h"
#include "kernels/ceiling/ceiling.h"
#include "kernels/kernel_table.h"

namespace tandem {

struct MachineFacts {
  CpuModel cpu;
  CpuTopology topology;
  std::optional<CpuQuota> quota;
  std::string huge_pages;  // "always", "madvise", "never"; empty: no such setting
  int64_t total_memory_bytes = 0;
  int64_t available_memory_bytes = 0;
  std::optional<MemoryLimit> memory_limit;
};
MachineFacts read_machine_facts();

// The instructions that a backend needs and `cpu` does not list, by the names of /proc/cpuinfo.
std::vector<std::string> missing_instructions(const CpuModel& cpu, KernelBackend backend);

using TellCheck = FunctionRef<void(DoctorCheck)>;

// cpu: kernels, threads, smt, caches, numa, huge_pages. `chosen` is what runs, `best` what this CPU could run.
void check_cpu(const MachineFacts& facts, KernelBackend chosen, KernelBackend best, const ThreadPlacement& threads,
               TellCheck tell);

// memory: size.
void check_memory_size(const MachineFacts& facts, TellCheck tell);

// memory: ceilings, measured on one thread and on all; the larger of them is the bound of decode.
MachineCeilings check_memory_speed(const MachineFacts& facts, const KernelTable& kernels,
                                   const ThreadPlacement& threads, TellCheck tell);

}  // namespace tandem
