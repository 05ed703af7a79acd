// stream/quick_math.h: log2, exp2 and the logistic function to about three digits, in f32 additions and products only:
// the same bits on every machine and compiler, and loops over them vectorise.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace tandem {

// x > 0 and normal. Exact at powers of two; error below 0.009.
inline float quick_log2(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const float exponent = static_cast<float>(static_cast<int32_t>(bits >> 23) - 127);
  const float mantissa = std::bit_cast<float>((bits & 0x7FFFFFU) | 0x3F800000U) - 1.F;  // [0, 1)
  return exponent + mantissa * (1.3465552F - 0.3465552F * mantissa);
}

// Relative error below 0.4 %; x is taken into [-100, 100].
inline float quick_exp2(float x) {
  const float clamped = std::clamp(x, -100.F, 100.F);
  const float whole = static_cast<float>(static_cast<int32_t>(clamped + 128.F) - 128);  // floor
  const float part = clamped - whole;
  const float scale = std::bit_cast<float>(static_cast<uint32_t>(static_cast<int32_t>(whole) + 127) << 23);
  return scale * (1.F + part * (0.6565F + 0.3435F * part));
}

inline float quick_logistic(float x) { return 1.F / (1.F + quick_exp2(-1.442695F * x)); }

}  // namespace tandem
