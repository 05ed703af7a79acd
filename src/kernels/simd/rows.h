// kernels/simd/rows.h: walk one row in registers, and a matrix's rows over the threads.
#pragma once

#include <cstdint>

#include "kernels/exec_context.h"
#include "kernels/simd/vec.h"

// After a lambda's parameter list: the body is compiled into its caller.
#define TANDEM_INLINE_LAMBDA __attribute__((always_inline))

namespace tandem::simd {
namespace {

// A whole register of a row, or its last n < kLanes elements.
struct FullBlock {};
struct TailBlock {
  int64_t n;
};
TANDEM_INLINE Vec load(const float* p, FullBlock) { return load(p); }
TANDEM_INLINE Vec load(const float* p, TailBlock tail) { return load_partial(p, tail.n); }
TANDEM_INLINE void store(float* p, Vec x, FullBlock) { store(p, x); }
TANDEM_INLINE void store(float* p, Vec x, TailBlock tail) { store_partial(p, x, tail.n); }

// body(i, block) for every register-sized piece [i, i + kLanes) of `size` elements, the tail last.
template <class Body>
TANDEM_INLINE void for_each_block(int64_t size, const Body& body) {
  int64_t i = 0;
  for (; i + Vec::kLanes <= size; i += Vec::kLanes) body(i, FullBlock{});
  if (i < size) body(i, TailBlock{size - i});
}

// body(row, thread) for every row; over the threads when there is enough work to pay for a fork-join.
template <class Body>
TANDEM_INLINE void for_each_row(const ExecContext& ctx, int64_t rows, int64_t elements_per_row, const Body& body) {
  constexpr int64_t kTaskElements = 16384;  // some microseconds: an order above the cost of handing out a task
  int64_t rows_per_task = kTaskElements / elements_per_row;
  if (rows_per_task < 1) rows_per_task = 1;
  const int64_t tasks = (rows + rows_per_task - 1) / rows_per_task;
  if (tasks <= 1) {
    for (int64_t row = 0; row < rows; ++row) body(row, 0);
    return;
  }
  ctx.pool.parallel_for(tasks, [&](int64_t task, int thread) {
    const int64_t begin = task * rows_per_task;
    const int64_t end = begin + rows_per_task < rows ? begin + rows_per_task : rows;
    for (int64_t row = begin; row < end; ++row) body(row, thread);
  });
}

}  // namespace
}  // namespace tandem::simd
