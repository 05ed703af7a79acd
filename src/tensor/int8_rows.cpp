#include "tensor/int8_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tensor/weight_view.h"

namespace tandem {
namespace {

constexpr uint16_t kBf16Nan = 0x7fc0;

// Bits of the smallest bf16 >= x, for x >= 0.
uint16_t round_up_to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits >> 16) + ((bits & 0xffff) != 0 ? 1 : 0));
}

}  // namespace

void int8_quantize_row(std::span<const float> values, std::byte* out) {
  constexpr auto kGroup = static_cast<size_t>(kInt8GroupColumns);
  auto* codes = reinterpret_cast<int8_t*>(out);
  std::byte* scales = out + values.size();
  for (size_t begin = 0; begin < values.size(); begin += kGroup, scales += 2) {
    const size_t end = std::min(values.size(), begin + kGroup);
    // The bits of magnitudes order as integers, with infinities and NaN last.
    uint32_t largest = 0;
    for (size_t i = begin; i < end; ++i) {
      const uint32_t magnitude = std::bit_cast<uint32_t>(values[i]) & 0x7fffffffu;
      largest = magnitude > largest ? magnitude : largest;
    }
    const float max_abs = std::bit_cast<float>(largest);
    const uint16_t stored = std::isfinite(max_abs) ? round_up_to_bf16(max_abs / 127.f) : kBf16Nan;
    std::memcpy(scales, &stored, sizeof stored);
    const auto scale = std::bit_cast<float>(static_cast<uint32_t>(stored) << 16);
    if (stored == 0 || stored == kBf16Nan) {
      std::memset(codes + begin, 0, end - begin);
      continue;
    }
    // Adding 1.5 · 2^23 leaves the nearest integer in the low bits of the sum.
    for (size_t i = begin; i < end; ++i) {
      const float shifted = values[i] / scale + 0x1.8p23f;
      codes[i] = static_cast<int8_t>(std::bit_cast<uint32_t>(shifted) & 0xff);
    }
  }
}

}  // namespace tandem
