// kernels/simd/mxfp8_rows.h: tensor/mxfp4.h's mxfp8_round over Vec, bitwise equal to it.
#pragma once

#include <cstdint>

#include "kernels/simd/weight_rows.h"

namespace tandem::simd {
namespace {

// Nearest E4M3 value of x (already scaled), ties to even, saturating at 448.
TANDEM_INLINE Vec round_e4m3(Vec x) {
  const Vec magnitude = min(broadcast(448.f), abs(x));
  // The step is 2^-3 of the value's power of two, 2^-9 below 2^-6. Adding 1.5·2^23 steps leaves whole steps only.
  const Vec power = max(exponent_part(magnitude), broadcast(0x1p-6f));
  const Vec shift = power * broadcast(0x1.8p20f);
  const Vec rounded = (magnitude + shift) - shift;
  return copysign(min(broadcast(448.f), rounded), x);
}

// `count` is a multiple of 32; out may be x.
TANDEM_INLINE void mxfp8_round_row(const float* x, int64_t count, float* out) {
  for (int64_t group = 0; group < count; group += kGroup) {
    Vec v[kGroupVecs];
    Vec largest = zero();
    for (int i = 0; i < kGroupVecs; ++i) {
      v[i] = load(x + group + i * Vec::kLanes);
      largest = max(abs(v[i]), largest);  // a NaN loses: it does not set the scale
    }
    const float max_abs = reduce_max(largest);
    if (max_abs > 0.f && max_abs < __builtin_inff()) {
      uint32_t bits;
      __builtin_memcpy(&bits, &max_abs, sizeof bits);
      int exponent = static_cast<int>(bits >> 23) - 127 - 8;
      if (exponent < -127) exponent = -127;
      const Vec up = broadcast(static_cast<float>(-exponent));
      const Vec down = broadcast(static_cast<float>(exponent));
      for (int i = 0; i < kGroupVecs; ++i) v[i] = scale_pow2(round_e4m3(scale_pow2(v[i], up)), down);
    }
    for (int i = 0; i < kGroupVecs; ++i) store(out + group + i * Vec::kLanes, v[i]);
  }
}

}  // namespace
}  // namespace tandem::simd
