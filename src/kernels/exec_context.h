// kernels/exec_context.h: what an operator receives besides its arguments. Engine thread only.
#pragma once

#include "base/arena.h"
#include "base/thread_pool.h"

namespace tandem {

struct KernelTable;

struct ExecContext {
  ThreadPool& pool;
  Arena& arena;                // scratch of the step; an operator gives back what it took
  const KernelTable& kernels;  // chosen once at load: kernels/kernel_table.h
};

}  // namespace tandem
