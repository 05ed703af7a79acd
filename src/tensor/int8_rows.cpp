#include "tensor/int8_rows.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "tensor/weight_view.h"

namespace tandem {
namespace {

// The smallest f32 of 16 significant bits >= x, for x >= 0. A carry into the exponent is right as it is.
float round_up_to_16_bits(float x) { return std::bit_cast<float>((std::bit_cast<uint32_t>(x) + 0xffu) & ~0xffu); }

// The bits of magnitudes order as integers, with infinities and NaN last.
float largest_magnitude(std::span<const float> values) {
  uint32_t largest = 0;
  for (const float value : values) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return std::bit_cast<float>(largest);
}

}  // namespace

float int8_quantize_row(std::span<const float> values, int8_t* codes) {
  WeightView row;
  row.cols = static_cast<int64_t>(values.size());
  row.format = WeightFormat::kInt8;
  std::memset(codes, 0, static_cast<size_t>(row.row_bytes()));
  const float largest = largest_magnitude(values);
  if (!std::isfinite(largest)) return std::numeric_limits<float>::quiet_NaN();
  const float scale = round_up_to_16_bits(largest / 127.f);
  if (scale == 0.f) return 0.f;
  // Adding 1.5 · 2^23 leaves the nearest integer in the low bits of the sum.
  for (size_t i = 0; i < values.size(); ++i) {
    const float shifted = values[i] / scale + 0x1.8p23f;
    codes[i] = static_cast<int8_t>(std::bit_cast<uint32_t>(shifted) & 0xff);
  }
  return scale;
}

}  // namespace tandem
