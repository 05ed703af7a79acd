// base/thread_placement.h: how many threads compute, and on which processors: a pure function of the topology.
//
//   Default   one thread for each core (SMT siblings share one core's multipliers, and bandwidth needs few threads a
//             core), no more than the control groups' processor quota. On a machine of several third-level caches or
//             memory nodes each thread is bound to its processor, and threads fill one cache after the other, so that
//             fewer threads than cores stay together; elsewhere the kernel's scheduler chooses.
//   Asked     a number of threads beyond the cores uses the siblings too; a list of processors binds thread i to the
//             i-th of them.
#pragma once

#include <optional>
#include <string>

#include "base/cpu_topology.h"
#include "base/result.h"

namespace tandem {

struct ThreadWish {
  std::optional<int> num_threads;
  std::optional<CpuList> cpus;  // bind to these
};

struct ThreadPlacement {
  int num_threads = 1;
  CpuList cpus;  // thread i's; empty: not bound. Any order
};

// kInvalidArgument: a processor that is not allowed, or fewer processors than threads asked for.
Result<ThreadPlacement> place_threads(const CpuTopology& topology, std::optional<double> quota_cpus,
                                      const ThreadWish& wish);

// Binds the calling thread; false: the kernel refuses (the thread then runs where it may).
bool bind_this_thread(int cpu);

}  // namespace tandem
