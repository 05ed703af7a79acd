// kernels/simd/e8m0.h: the E8M0 scale byte of a microscaling group as a float, without a branch.
#pragma once

#include <cstdint>

#include "kernels/simd/inline.h"

namespace tandem::simd {
namespace {

// 2^(e − 127): 0 is the subnormal 2^-127 and 255 is NaN; both are the exponent field with the top mantissa bit set.
TANDEM_INLINE float e8m0_scale(uint8_t e) {
  uint32_t bits = static_cast<uint32_t>(e) << 23;
  bits |= static_cast<uint32_t>((e == 0) | (e == 255)) << 22;
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace
}  // namespace tandem::simd
