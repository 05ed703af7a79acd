#include "tensor/mxfp4.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "support/golden.h"

namespace tandem::test {
namespace {

TEST(Mxfp4, GoldenRowsAreExact) {
  const Golden golden = Golden::load("golden/ops/mxfp4.safetensors");
  for (const std::string name : {"all", "mat"}) {
    const GoldenTensor& value = golden[name + ".value"];
    WeightView weight;
    weight.data = golden[name + ".packed"].u8.data();
    weight.scale = golden[name + ".scale"].u8.data();
    weight.rows = value.shape[0];
    weight.cols = value.shape[1];
    weight.format = WeightFormat::kMxfp4;
    std::vector<float> row(static_cast<size_t>(weight.cols));
    for (int64_t r = 0; r < weight.rows; ++r) {
      weight_row_to_f32(weight, r, row);
      for (int64_t c = 0; c < weight.cols; ++c) {
        const float expected = value.f32[static_cast<size_t>(r * weight.cols + c)];
        ASSERT_EQ(std::bit_cast<uint32_t>(row[c]), std::bit_cast<uint32_t>(expected))
            << name << " [" << r << ", " << c << "]";
      }
    }
  }
}

TEST(Mxfp4, TheLowNibbleIsTheEvenColumn) {
  const uint8_t packed[16] = {0x21};
  const uint8_t scale = 127;
  std::vector<float> row(32);
  weight_row_to_f32({packed, &scale, 1, 32, WeightFormat::kMxfp4}, 0, row);
  EXPECT_EQ(row[0], 0.5f);
  EXPECT_EQ(row[1], 1.f);
}

TEST(Mxfp4, ScalesArePowersOfTwo) {
  for (int e = 0; e < 255; ++e) EXPECT_EQ(e8m0_to_f32(static_cast<uint8_t>(e)), std::ldexp(1.f, e - 127)) << e;
  EXPECT_TRUE(std::isnan(e8m0_to_f32(255)));
}

TEST(Mxfp4, QuantisingDecodedValuesGivesThemBack) {
  std::mt19937 engine(1);
  for (int round = 0; round < 2000; ++round) {
    uint8_t packed[16];
    for (uint8_t& byte : packed) byte = static_cast<uint8_t>(engine());
    packed[0] = static_cast<uint8_t>((packed[0] & 0xf0) | 7);  // a 6: the group's maximum picks this very scale
    const auto scale = static_cast<uint8_t>(3 + engine() % 250);
    std::vector<float> values(32), again(32);
    weight_row_to_f32({packed, &scale, 1, 32, WeightFormat::kMxfp4}, 0, values);
    uint8_t packed_again[16];
    uint8_t scale_again = 0;
    mxfp4_quantize_group(std::span<const float, 32>(values), std::span<uint8_t, 16>(packed_again), scale_again);
    EXPECT_EQ(scale_again, scale);
    weight_row_to_f32({packed_again, &scale_again, 1, 32, WeightFormat::kMxfp4}, 0, again);
    for (size_t i = 0; i < 32; ++i) ASSERT_EQ(again[i], values[i]);
  }
}

TEST(Mxfp4, QuantisingPicksTheNearestValue) {
  std::mt19937 engine(2);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 500; ++round) {
    std::vector<float> values(32), decoded(32);
    for (float& v : values) v = normal(engine);
    uint8_t packed[16];
    uint8_t scale = 0;
    mxfp4_quantize_group(std::span<const float, 32>(values), std::span<uint8_t, 16>(packed), scale);
    weight_row_to_f32({packed, &scale, 1, 32, WeightFormat::kMxfp4}, 0, decoded);
    for (size_t i = 0; i < 32; ++i) {
      float best = INFINITY;
      for (const float v : kE2M1Values) best = std::fmin(best, std::fabs(values[i] - v * e8m0_to_f32(scale)));
      ASSERT_EQ(std::fabs(values[i] - decoded[i]), best);
    }
  }
}

TEST(Mxfp4, ZerosStayZeros) {
  const std::vector<float> zeros(32, 0.f);
  uint8_t packed[16];
  uint8_t scale = 9;
  mxfp4_quantize_group(std::span<const float, 32>(zeros), std::span<uint8_t, 16>(packed), scale);
  for (const uint8_t byte : packed) EXPECT_EQ(byte, 0);
}

TEST(Mxfp8, Vector) {  // model.md §9: e = −6, the last of the five saturates at 448 · 2^-6
  std::vector<float> x(32, 0.f);
  const float in[] = {0.1f, -0.33f, 1.f, 5.3f, -7.9f};
  const float out[] = {0.1015625f, -0.34375f, 1.f, 5.5f, -7.f};
  for (size_t i = 0; i < 5; ++i) x[i] = in[i];
  mxfp8_round(x);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(x[i], out[i]) << i;
  for (size_t i = 5; i < 32; ++i) EXPECT_EQ(x[i], 0.f);
}

TEST(Mxfp8, ANanStaysAndTheOtherLanesRoundWithoutIt) {
  std::vector<float> x(32);
  for (size_t i = 0; i < 32; ++i) x[i] = 0.1f + 0.3f * static_cast<float>(i);
  std::vector<float> without = x;
  without[7] = 0.f;
  mxfp8_round(without);
  x[7] = std::numeric_limits<float>::quiet_NaN();
  mxfp8_round(x);
  EXPECT_TRUE(std::isnan(x[7]));
  x[7] = without[7];
  EXPECT_EQ(x, without);
  std::vector<float> all(32, std::numeric_limits<float>::quiet_NaN());
  mxfp8_round(all);
  for (const float v : all) EXPECT_TRUE(std::isnan(v));
}

TEST(Mxfp8, AGroupWithAnInfinityStaysAsItIs) {
  std::vector<float> x(64, 0.3f);
  x[3] = std::numeric_limits<float>::infinity();
  x[4] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> rounded = x;
  mxfp8_round(rounded);
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(std::bit_cast<uint32_t>(rounded[i]), std::bit_cast<uint32_t>(x[i])) << i;
  EXPECT_EQ(rounded[32], 0.3125f);
}

TEST(Mxfp8, EveryResultIsAnE4M3ValueAndRoundingAgainChangesNothing) {
  std::mt19937 engine(3);
  for (int round = 0; round < 500; ++round) {
    std::normal_distribution<float> normal(0.f, std::ldexp(1.f, static_cast<int>(engine() % 60) - 30));
    std::vector<float> x(32);
    for (float& v : x) v = normal(engine);
    float max_abs = 0.f;
    for (const float v : x) max_abs = std::fmax(max_abs, std::fabs(v));
    const int e = std::ilogb(max_abs) - 8;
    const std::vector<float> source = x;
    mxfp8_round(x);
    for (size_t i = 0; i < 32; ++i) {
      const float q = std::fabs(std::ldexp(x[i], -e));
      ASSERT_LE(q, 448.f);
      const float step = q < 0x1p-6f ? 0x1p-9f : std::ldexp(1.f, std::ilogb(q) - 3);
      ASSERT_EQ(std::nearbyint(q / step) * step, q) << "not an E4M3 value";
      if (std::fabs(std::ldexp(source[i], -e)) <= 448.f) {
        ASSERT_LE(std::fabs(source[i] - x[i]), std::ldexp(step, e) * 0.5f * (1.f + 0x1p-10f));
      }
    }
    const std::vector<float> once = x;
    mxfp8_round(x);
    for (size_t i = 0; i < 32; ++i) ASSERT_EQ(x[i], once[i]);
  }
}

}  // namespace
}  // namespace tandem::test
