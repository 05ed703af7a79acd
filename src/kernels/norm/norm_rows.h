// kernels/norm/norm_rows.h: the norms of norm.h for one row over Vec, shared with kda_decode. Two passes: the sum of
// squares in four registers (the order depends on D alone), then the scaling.
#pragma once

#include "kernels/simd/rows.h"
#include "kernels/simd/vec_math.h"

namespace tandem::simd {
namespace {

TANDEM_INLINE float sum_of_squares(const float* x, int64_t size) {
  Vec acc[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * Vec::kLanes <= size; i += 4 * Vec::kLanes) {
    for (int j = 0; j < 4; ++j) {
      const Vec v = load(x + i + j * Vec::kLanes);
      acc[j] = fma(v, v, acc[j]);
    }
  }
  for_each_block(size - i, [&](int64_t j, auto block) TANDEM_INLINE_LAMBDA {
    const Vec v = load(x + i + j, block);
    acc[0] = fma(v, v, acc[0]);
  });
  return sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

TANDEM_INLINE Vec inverse_root(const float* x, int64_t size, float divisor, float eps) {
  return broadcast(1.f / __builtin_sqrtf(sum_of_squares(x, size) / divisor + eps));
}

// rms_norm_gated and l2_norm of one row of D elements.
TANDEM_INLINE void gated_norm_row(const float* x, const float* gate, const float* weight, int64_t D, float eps,
                                  float* out) {
  const Vec inv = inverse_root(x, D, static_cast<float>(D), eps);
  for_each_block(D, [&](int64_t d, auto block) TANDEM_INLINE_LAMBDA {
    const Vec normed = load(weight + d, block) * (load(x + d, block) * inv);
    store(out + d, normed * sigmoid(load(gate + d, block)), block);
  });
}
TANDEM_INLINE void l2_norm_row(const float* x, int64_t D, float eps, float* out) {
  const Vec inv = inverse_root(x, D, 1.f, eps);
  for_each_block(D,
                 [&](int64_t d, auto block) TANDEM_INLINE_LAMBDA { store(out + d, load(x + d, block) * inv, block); });
}

}  // namespace
}  // namespace tandem::simd
