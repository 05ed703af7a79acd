// kernels/kda/kda_gate_rows.h: the decay gate of kda.h for one row of one head, shared by kda_gate and kda_decode.
#pragma once

#include "kernels/simd/vec_math.h"

namespace tandem {
namespace {

using simd::Vec;

TANDEM_INLINE Vec gate(Vec z, Vec a, Vec lower_bound, bool bounded) {
  return bounded ? lower_bound * simd::sigmoid(a * z) : simd::zero() - a * simd::softplus(z);
}

TANDEM_INLINE void gate_head(const float* z, const float* dt_bias, float* g, int64_t count, Vec a, Vec lower_bound,
                             bool bounded) {
  int64_t i = 0;
  for (; i + Vec::kLanes <= count; i += Vec::kLanes) {
    simd::store(g + i, gate(simd::load(z + i) + simd::load(dt_bias + i), a, lower_bound, bounded));
  }
  const int64_t left = count - i;
  if (left > 0) {
    const Vec biased = simd::load_partial(z + i, left) + simd::load_partial(dt_bias + i, left);
    simd::store_partial(g + i, gate(biased, a, lower_bound, bounded), left);
  }
}

}  // namespace
}  // namespace tandem
