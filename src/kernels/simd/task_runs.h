// kernels/simd/task_runs.h: tasks over the threads in runs: every thread walks its own stretch of consecutive tasks, so
// that what one task prefetches the next one reads, and takes single tasks from the others' stretches when its own is
// done.
#pragma once

#include <cstdint>

#include "kernels/exec_context.h"
#include "kernels/simd/inline.h"

namespace tandem::simd {
namespace {

struct alignas(64) TaskRun {
  int64_t next;  // atomic
  int64_t end;
};

// body(task, thread, is_next_ours): the last says that this thread most likely runs task + 1 after this one.
template <class Body>
TANDEM_INLINE void for_each_task_in_runs(const ExecContext& ctx, int64_t num_tasks, const Body& body) {
  constexpr int64_t kMostRuns = 64;
  int64_t num_runs = ctx.pool.num_threads();
  if (num_runs > num_tasks) num_runs = num_tasks;
  if (num_runs > kMostRuns) num_runs = kMostRuns;
  if (num_runs < 1) return;
  TaskRun runs[kMostRuns];
  for (int64_t i = 0; i < num_runs; ++i) runs[i] = {num_tasks * i / num_runs, num_tasks * (i + 1) / num_runs};
  const int64_t walkers = ctx.pool.num_threads() < num_tasks ? ctx.pool.num_threads() : num_tasks;
  ctx.pool.parallel_for(walkers, [&](int64_t walker, int thread) {
    for (int64_t i = 0; i < num_runs; ++i) {
      TaskRun& run = runs[(walker + i) % num_runs];
      while (true) {
        const int64_t task = __atomic_fetch_add(&run.next, 1, __ATOMIC_RELAXED);
        if (task >= run.end) break;
        body(task, thread, task + 1 < run.end);
      }
    }
  });
}

}  // namespace
}  // namespace tandem::simd
