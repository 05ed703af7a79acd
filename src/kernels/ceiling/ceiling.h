// kernels/ceiling/ceiling.h: what this machine can do at best, measured: the denominators of every "% of the ceiling".
//
//   read_gb_s    sum of a large huge-page buffer, every thread reading 8 streams (10^9 bytes a second)
//   f32_gflop_s  12 independent fused multiply-add chains in registers on every thread (10^9 operations a second)
//   Medians over several passes, in the instruction set of the context's backend.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/exec_context.h"

namespace tandem {

struct MachineCeilings {
  double read_gb_s = 0.0;
  double f32_gflop_s = 0.0;
};

// Takes about half a second; touches `buffer_bytes` of memory (0 when it cannot be had: read_gb_s is 0 then).
MachineCeilings measure_ceilings(const ExecContext& ctx, size_t buffer_bytes = size_t{1} << 30);

}  // namespace tandem
