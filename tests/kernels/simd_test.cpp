#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "kernels/kernel_table.h"
#include "kernels/simd_functions.h"
#include "kernels/simd_functions.inl"
#include "tensor/dtype.h"
#include "tensor/mxfp4.h"

namespace tandem::test {

SimdFunctions portable_simd() { return functions_of_this_set("portable"); }

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class Simd : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const CpuFeatures cpu = detect_cpu_features();
    f_ = GetParam() == 0 ? portable_simd() : (GetParam() == 1 ? avx2_simd() : avx512_simd());
    if (f_.name == nullptr) GTEST_SKIP() << "SKIP: this set's table needs GCC on x86-64";
    if ((GetParam() == 1 && !cpu.avx2) || (GetParam() == 2 && !cpu.avx512))
      GTEST_SKIP() << "SKIP: this CPU lacks " << f_.name;
  }
  SimdFunctions f_;
};

// Every 4093rd bit pattern: about a million floats, all exponents, both signs, subnormals, infinities and NaN.
const std::vector<float>& sampled_floats() {
  static const std::vector<float> values = [] {
    std::vector<float> v = {0.f,       -0.f,       kInf,       -kInf,    kNan,  88.72283f,
                            88.72284f, -87.33654f, -87.33655f, -103.97f, -104.f};
    for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4093)
      v.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
    for (float x = -110.f; x < 95.f; x += 0.00173f) v.push_back(x);
    return v;
  }();
  return values;
}

// The distance in units of the last place of the exact value (the subnormal step below 2^-126).
double ulps(float actual, double exact) {
  if (std::fabs(exact) > static_cast<double>(std::numeric_limits<float>::max())) {
    return std::isinf(actual) && (actual > 0) == (exact > 0) ? 0.0 : kInf;
  }
  if (!std::isfinite(actual)) return std::nextafter(std::fabs(exact), HUGE_VAL) > 3.4028233e38 ? 0.0 : kInf;
  const int exponent = exact == 0.0 ? -126 : std::max(std::ilogb(exact), -126);
  return std::fabs(static_cast<double>(actual) - exact) / std::ldexp(1.0, exponent - 23);
}

void expect_ulps(void (*function)(const float*, int64_t, float*), const std::function<double(double)>& exact,
                 double limit) {
  const std::vector<float>& x = sampled_floats();
  std::vector<float> y(x.size());
  function(x.data(), static_cast<int64_t>(x.size()), y.data());
  double worst = 0.0;
  float worst_x = 0.f;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {
      ASSERT_TRUE(std::isnan(y[i])) << "NaN was lost";
      continue;
    }
    const double distance = ulps(y[i], exact(static_cast<double>(x[i])));
    if (distance > worst) {
      worst = distance;
      worst_x = x[i];
    }
  }
  EXPECT_LE(worst, limit) << "at " << worst_x;
  ::testing::Test::RecordProperty("worst_ulp", std::to_string(worst));
}

TEST_P(Simd, Exp) {
  expect_ulps(
      f_.exp, [](double x) { return std::exp(x); }, 2.0);
}

TEST_P(Simd, Sigmoid) {
  expect_ulps(
      f_.sigmoid, [](double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }, 4.0);
}

TEST_P(Simd, Tanh) {
  expect_ulps(
      f_.tanh, [](double x) { return std::tanh(x); }, 4.0);
  const float x[] = {kInf, -kInf, -0.f, 10.f, -10.f};
  float y[5];
  f_.tanh(x, 5, y);
  EXPECT_THAT(y, ::testing::ElementsAre(1.f, -1.f, 0.f, 1.f, -1.f));
  EXPECT_TRUE(std::signbit(y[2]));
}

TEST_P(Simd, Softplus) {
  expect_ulps(
      f_.softplus, [](double x) { return std::fmax(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }, 4.0);
}

TEST_P(Simd, RoundEven) {
  expect_ulps(
      f_.round_even, [](double x) { return std::nearbyint(x); }, 0.0);
}

TEST_P(Simd, SixteenBitFormatsWidenExactlyAllOfThem) {
  std::vector<uint16_t> bits(65536);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(bits.size());
  for (const bool half : {false, true}) {
    // 65533 of them: the tail path too.
    for (const int64_t n : {65536, 65533}) {
      (half ? f_.widen_f16 : f_.widen_bf16)(bits.data(), n, wide.data());
      for (int64_t i = 0; i < n; ++i) {
        const float expected = half ? to_f32(f16{bits[i]}) : to_f32(bf16{bits[i]});
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(wide[i])) << i;
        } else {
          ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(expected)) << i;
        }
      }
    }
  }
}

TEST_P(Simd, RoundsToBf16LikeTheScalarRule) {
  const std::vector<float>& x = sampled_floats();
  std::vector<float> y(x.size());
  f_.round_to_bf16(x.data(), static_cast<int64_t>(x.size()), y.data());
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(round_bf16(x[i]))) << x[i];
  }
}

TEST_P(Simd, DecodesEveryMxfp4ByteUnderEveryScale) {
  for (int e = 0; e < 256; ++e) {
    const auto scale = static_cast<uint8_t>(e);
    const float expected_scale = e8m0_to_f32(scale);
    if (e == 255) {
      EXPECT_TRUE(std::isnan(f_.e8m0(scale)));
    } else {
      ASSERT_EQ(f_.e8m0(scale), expected_scale);
    }
    for (int first = 0; first < 256; first += 16) {
      uint8_t packed[16];
      for (int i = 0; i < 16; ++i) packed[i] = static_cast<uint8_t>(first + i);
      float out[32];
      f_.decode_mxfp4(packed, scale, out);
      for (int i = 0; i < 16; ++i) {
        const float even = kE2M1Values[packed[i] & 15] * expected_scale;
        const float odd = kE2M1Values[packed[i] >> 4] * expected_scale;
        if (e == 255) {
          ASSERT_TRUE(std::isnan(out[i]) && std::isnan(out[16 + i]));
        } else {
          ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(even));
          ASSERT_EQ(std::bit_cast<uint32_t>(out[16 + i]), std::bit_cast<uint32_t>(odd));
        }
      }
    }
  }
}

TEST_P(Simd, Mxfp8RoundsLikeTheScalarRule) {
  std::vector<float> x;
  for (const float v : sampled_floats()) {
    if (std::isfinite(v)) x.push_back(v);
  }
  // Groups of like magnitudes, so that every E4M3 step and subnormal is met: v · {1, 2^-1, … } within a group.
  for (size_t i = 0; i + 32 <= x.size(); i += 32) {
    for (size_t j = 1; j < 32; ++j)
      x[i + j] = std::ldexp(x[i], -static_cast<int>(j / 2)) * (1.f - static_cast<float>(j) / 37.f);
  }
  x.resize(x.size() / 32 * 32);
  std::vector<float> expected = x;
  mxfp8_round(expected);
  std::vector<float> y(x.size());
  f_.mxfp8_round(x.data(), static_cast<int64_t>(x.size()), y.data());
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(expected[i])) << x[i] << " in group " << i / 32;
  }
}

TEST_P(Simd, Mxfp8WithOneLaneThatIsNotFinite) {
  std::vector<float> group(32);
  for (size_t i = 0; i < 32; ++i) group[i] = std::ldexp(i % 2 == 0 ? 1.37f : -1.81f, static_cast<int>(i % 11) - 5);
  for (const float odd : {kNan, -kNan, kInf, -kInf}) {
    for (size_t lane = 0; lane < 32; ++lane) {
      std::vector<float> x = group;
      x[lane] = odd;
      std::vector<float> expected = x;
      mxfp8_round(expected);
      float y[32];
      f_.mxfp8_round(x.data(), 32, y);
      for (size_t i = 0; i < 32; ++i) {
        if (i == lane && std::isnan(odd)) {
          ASSERT_TRUE(std::isnan(y[i]) && std::isnan(expected[i])) << "lane " << lane;
        } else {
          ASSERT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(expected[i])) << "lane " << lane;
        }
      }
    }
  }
}

TEST_P(Simd, FourSumsAreBitwiseOneSum) {
  std::vector<float> x(static_cast<size_t>(4 * f_.lanes));
  uint32_t state = 1;
  for (int round = 0; round < 1000; ++round) {
    for (float& v : x) {
      state = state * 1664525u + 1013904223u;
      v = std::ldexp(static_cast<float>(static_cast<int32_t>(state)), -20 - static_cast<int>(state % 13));
    }
    float one[4], four[4];
    f_.sums(x.data(), one, four);
    for (int i = 0; i < 4; ++i) ASSERT_EQ(std::bit_cast<uint32_t>(one[i]), std::bit_cast<uint32_t>(four[i]));
  }
}

TEST_P(Simd, EightAndSixteenSumsAreBitwiseOneSum) {
  std::vector<float> x(static_cast<size_t>(16 * f_.lanes));
  uint32_t state = 7;
  for (int round = 0; round < 1000; ++round) {
    for (float& v : x) {
      state = state * 1664525u + 1013904223u;
      v = std::ldexp(static_cast<float>(static_cast<int32_t>(state)), -20 - static_cast<int>(state % 13));
    }
    float one[16], eight[8], sixteen[16];
    f_.many_sums(x.data(), one, eight, sixteen);
    for (int i = 0; i < 8; ++i) ASSERT_EQ(std::bit_cast<uint32_t>(one[i]), std::bit_cast<uint32_t>(eight[i])) << i;
    for (int i = 0; i < 16; ++i) ASSERT_EQ(std::bit_cast<uint32_t>(one[i]), std::bit_cast<uint32_t>(sixteen[i])) << i;
  }
}

TEST_P(Simd, MinAndMaxReturnTheSecondOperandWithNan) {
  const float a[] = {1.f, 2.f, kNan, 3.f, -kInf};
  const float b[] = {2.f, 1.f, 4.f, kNan, 0.f};
  float lowest[5], highest[5];
  f_.extrema(a, b, 5, lowest, highest);
  EXPECT_EQ(lowest[0], 1.f);
  EXPECT_EQ(highest[1], 2.f);
  EXPECT_EQ(lowest[2], 4.f);
  EXPECT_EQ(highest[2], 4.f);
  EXPECT_TRUE(std::isnan(lowest[3]) && std::isnan(highest[3]));
  EXPECT_EQ(lowest[4], -kInf);
}

INSTANTIATE_TEST_SUITE_P(Sets, Simd, ::testing::Values(0, 1, 2), [](const auto& set) {
  return std::string(set.param == 0 ? "portable" : (set.param == 1 ? "avx2" : "avx512"));
});

}  // namespace
}  // namespace tandem::test
