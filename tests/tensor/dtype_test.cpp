#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tandem::test {
namespace {

TEST(DType, NamesAndSizesRoundTrip) {
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
    EXPECT_GE(dtype_size(dtype), 1);
  }
  EXPECT_EQ(dtype_name(DType::kBF16), "BF16");
  EXPECT_EQ(dtype_size(DType::kF8E8M0), 1);
  EXPECT_EQ(dtype_from_name("bf16"), std::nullopt);
}

// The value of a half from its fields, in double.
double half_value(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(DType, EveryHalfWidensExactlyAndComesBack) {
  for (uint32_t b = 0; b < 65536; ++b) {
    const f16 half{static_cast<uint16_t>(b)};
    const float wide = to_f32(half);
    if (((b >> 10) & 31) == 31) {
      if ((b & 1023) == 0) {
        EXPECT_EQ(wide, (b & 0x8000) != 0 ? -INFINITY : INFINITY);
      } else {
        EXPECT_TRUE(std::isnan(wide) && std::isnan(to_f32(to_f16(wide))));
        continue;
      }
    } else {
      ASSERT_EQ(static_cast<double>(wide), half_value(half.bits)) << b;
    }
    ASSERT_EQ(to_f16(wide).bits, half.bits) << b;
  }
}

TEST(DType, EveryBf16WidensExactlyAndComesBack) {
  for (uint32_t b = 0; b < 65536; ++b) {
    const bf16 value{static_cast<uint16_t>(b)};
    const float wide = to_f32(value);
    ASSERT_EQ(std::bit_cast<uint32_t>(wide), b << 16);
    if (std::isnan(wide)) {
      ASSERT_TRUE(std::isnan(to_f32(to_bf16(wide))));
    } else {
      ASSERT_EQ(to_bf16(wide).bits, value.bits);
    }
  }
}

// Between two neighbours the nearer wins, and the even one at the exact middle.
template <class Narrow, class Round>
void expect_nearest_even(Round round) {
  for (uint32_t b = 0; b + 1 < 65536; ++b) {
    const float low = to_f32(Narrow{static_cast<uint16_t>(b)});
    const float high = to_f32(Narrow{static_cast<uint16_t>(b + 1)});
    if (!std::isfinite(low) || !std::isfinite(high) || std::signbit(low) != std::signbit(high)) continue;
    const auto middle = static_cast<float>((static_cast<double>(low) + static_cast<double>(high)) / 2);
    if (static_cast<double>(middle) * 2 != static_cast<double>(low) + static_cast<double>(high)) continue;
    ASSERT_EQ(round(middle).bits, b % 2 == 0 ? b : b + 1) << middle;
    ASSERT_EQ(round(std::nextafter(middle, low)).bits, b) << middle;
    ASSERT_EQ(round(std::nextafter(middle, high)).bits, b + 1) << middle;
  }
}

TEST(DType, HalfRoundsToNearestEven) {
  expect_nearest_even<f16>([](float x) { return to_f16(x); });
  EXPECT_EQ(to_f16(65519.f).bits, 0x7bff);
  EXPECT_EQ(to_f16(65520.f).bits, 0x7c00);
  EXPECT_EQ(to_f16(-1e30f).bits, 0xfc00);
  EXPECT_EQ(to_f16(-1e-30f).bits, 0x8000);
}

TEST(DType, Bf16RoundsToNearestEven) {
  expect_nearest_even<bf16>([](float x) { return to_bf16(x); });
  EXPECT_EQ(to_bf16(3.4e38f).bits, 0x7f80);  // rounds past the largest bf16
}

}  // namespace
}  // namespace tandem::test
