// kernels/amx/mxfp4_bf16.h: the sixteen E2M1 values times every E8M0 scale, as bf16. As in kernels/simd/mxfp4_table.h,
// a model uses few scales, so their rows stay in L1.
#pragma once

#include <cstdint>

namespace tandem::simd {

// Twice the sixteen codes: a permute of 16-bit words reads five bits. Products below the normal numbers of bf16 are 0
// (tiles read subnormal numbers as 0), above them infinity; scale 255 is NaN.
struct alignas(64) ScaledE2M1Bf16 {
  uint16_t row[256][32];  // [scale byte][code]
};
extern const ScaledE2M1Bf16 kScaledE2M1Bf16;

}  // namespace tandem::simd
