#include "kernels/simd/mxfp4_table.h"

#include <bit>
#include <cstdint>
#include <limits>

namespace tandem::simd {
namespace {

constexpr float kMagnitudes[8] = {0.f, 0.5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f};

// magnitude · 2^(e − 127) as f32 multiplies it: exact but for the overflow to infinity, and 255 is NaN.
constexpr float scaled(int e, float magnitude) {
  if (e == 255) return std::numeric_limits<float>::quiet_NaN();
  if ((e == 254 && magnitude >= 2.f) || (e == 253 && magnitude >= 4.f)) return std::numeric_limits<float>::infinity();
  const float scale = e == 0 ? 0x1p-127f : std::bit_cast<float>(static_cast<uint32_t>(e) << 23);
  return magnitude * scale;
}

constexpr ScaledE2M1 make_table() {
  ScaledE2M1 table{};
  for (int e = 0; e < 256; ++e) {
    for (int code = 0; code < 8; ++code) {
      table.row[e][code] = scaled(e, kMagnitudes[code]);
      table.row[e][code + 8] = -table.row[e][code];
    }
  }
  return table;
}

}  // namespace

constinit const ScaledE2M1 kScaledE2M1 = make_table();

}  // namespace tandem::simd
