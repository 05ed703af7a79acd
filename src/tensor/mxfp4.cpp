#include "tensor/mxfp4.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "tensor/dtype.h"

namespace tandem {
namespace {

// Nearest E4M3 value (1-4-3, bias 7, max 448, no infinity), ties to even, saturating. NaN stays NaN.
float round_e4m3(float x) {
  if (std::isnan(x)) return x;
  const float magnitude = std::fabs(x);
  if (magnitude >= 448.f) return std::copysign(448.f, x);
  // Below 2^-6 the format is subnormal with a fixed step of 2^-9; above, the step is 2^(exponent − 3).
  const int exponent = magnitude < 0x1p-6f ? -6 : std::ilogb(magnitude);
  const float step = std::ldexp(1.f, exponent - 3);
  const float rounded = std::nearbyint(magnitude / step) * step;
  return std::copysign(std::min(rounded, 448.f), x);
}

uint8_t nearest_e2m1(float magnitude) {
  uint8_t best = 0;
  float best_distance = std::numeric_limits<float>::infinity();
  for (uint8_t code = 0; code < 8; ++code) {
    const float distance = std::fabs(magnitude - kE2M1Values[code]);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace

float e8m0_to_f32(uint8_t e) {
  if (e == kE8M0Nan) return std::numeric_limits<float>::quiet_NaN();
  if (e == 0) return 0x1p-127f;  // a subnormal float
  return std::bit_cast<float>(static_cast<uint32_t>(e) << 23);
}

void mxfp4_quantize_group(std::span<const float, kMxGroup> values, std::span<uint8_t, kMxGroup / 2> packed,
                          uint8_t& scale) {
  float max_abs = 0.f;
  for (const float v : values) max_abs = std::max(max_abs, std::fabs(v));
  const int exponent = max_abs == 0.f ? -127 : std::clamp(std::ilogb(max_abs) - 2, -127, 127);
  scale = static_cast<uint8_t>(exponent + 127);
  for (size_t i = 0; i < packed.size(); ++i) {
    uint8_t byte = 0;
    for (size_t half = 0; half < 2; ++half) {
      const float v = values[2 * i + half];
      uint8_t code = nearest_e2m1(std::ldexp(std::fabs(v), -exponent));
      if (std::signbit(v) && code != 0) code |= 8;
      byte = static_cast<uint8_t>(byte | (code << (4 * half)));
    }
    packed[i] = byte;
  }
}

void weight_row_to_f32(const WeightView& weight, int64_t row, std::span<float> out) {
  TANDEM_CHECK(static_cast<int64_t>(out.size()) == weight.cols, "one output element a column");
  const WeightView one = weight.slice_rows(row, 1);
  switch (weight.format) {
    case WeightFormat::kF32: std::memcpy(out.data(), one.data, out.size_bytes()); return;
    case WeightFormat::kF16: {
      const auto* source = static_cast<const f16*>(one.data);
      for (size_t c = 0; c < out.size(); ++c) out[c] = to_f32(source[c]);
      return;
    }
    case WeightFormat::kBF16: {
      const auto* source = static_cast<const bf16*>(one.data);
      for (size_t c = 0; c < out.size(); ++c) out[c] = to_f32(source[c]);
      return;
    }
    case WeightFormat::kInt8: {
      const auto* codes = static_cast<const int8_t*>(one.data);
      float scale = 0.f;
      std::memcpy(&scale, one.scale, sizeof scale);
      for (size_t c = 0; c < out.size(); ++c) out[c] = static_cast<float>(codes[c]) * scale;
      return;
    }
    case WeightFormat::kMxfp4: {
      const auto* packed = static_cast<const uint8_t*>(one.data);
      for (size_t c = 0; c < out.size(); ++c) {
        const uint8_t code = (packed[c / 2] >> (4 * (c & 1))) & 15;
        out[c] = kE2M1Values[code] * e8m0_to_f32(one.scale[c / kMxGroup]);
      }
      return;
    }
  }
}

void mxfp8_round(std::span<float> x) {
  TANDEM_CHECK(x.size() % kMxGroup == 0, "MXFP8 groups are 32 wide");
  for (size_t begin = 0; begin < x.size(); begin += kMxGroup) {
    float max_abs = 0.f;
    for (size_t i = begin; i < begin + kMxGroup; ++i) max_abs = std::fmax(max_abs, std::fabs(x[i]));  // NaN loses
    if (max_abs == 0.f || std::isinf(max_abs)) continue;
    const int exponent = std::clamp(std::ilogb(max_abs) - 8, -127, 127);
    for (size_t i = begin; i < begin + kMxGroup; ++i) {
      x[i] = std::ldexp(round_e4m3(std::ldexp(x[i], -exponent)), exponent);
    }
  }
}

}  // namespace tandem
