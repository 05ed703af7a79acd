#include "kernels/amx/mxfp4_bf16.h"

namespace tandem::simd {
namespace {

// (1, 1.5) · 2^exponent as bf16 magnitudes of the codes 1 … 7; biased exponents at scale 127 (2⁰).
struct Magnitude {
  int exponent;
  int half;  // 1: 1.5
};
constexpr Magnitude kMagnitudes[8] = {{0, 0}, {126, 0}, {127, 0}, {127, 1}, {128, 0}, {128, 1}, {129, 0}, {129, 1}};

constexpr uint16_t scaled(int scale, int code) {
  if (scale == 255) return 0x7fc0;
  if (code == 0) return 0;
  const int exponent = kMagnitudes[code].exponent + scale - 127;
  if (exponent <= 0) return 0;
  if (exponent >= 255) return 0x7f80;
  return static_cast<uint16_t>(exponent << 7 | kMagnitudes[code].half << 6);
}

constexpr ScaledE2M1Bf16 make_table() {
  ScaledE2M1Bf16 table{};
  for (int scale = 0; scale < 256; ++scale) {
    for (int i = 0; i < 32; ++i) {
      const uint16_t magnitude = scaled(scale, i & 7);
      table.row[scale][i] = static_cast<uint16_t>((i & 8) != 0 ? magnitude | 0x8000 : magnitude);
    }
  }
  return table;
}

}  // namespace

constinit const ScaledE2M1Bf16 kScaledE2M1Bf16 = make_table();

}  // namespace tandem::simd
