#include "train/modules/mxfp4_fake_quant.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "support/compare.h"
#include "tensor/mxfp4.h"
#include "train/tensors.h"

namespace tandem::train {
namespace {

// Pack and decode, as export and the engine do.
std::vector<float> through_the_quantiser(const std::vector<float>& weights) {
  std::vector<float> out(weights.size());
  for (size_t begin = 0; begin < weights.size(); begin += kMxGroup) {
    std::array<uint8_t, kMxGroup / 2> packed{};
    uint8_t scale = 0;
    mxfp4_quantize_group(std::span<const float, kMxGroup>(&weights[begin], kMxGroup), packed, scale);
    const WeightView view{packed.data(), &scale, 1, kMxGroup, WeightFormat::kMxfp4};
    weight_row_to_f32(view, 0, std::span(out).subspan(begin, kMxGroup));
  }
  return out;
}

at::Tensor rows_of_32(const std::vector<float>& values) {
  return at::tensor(values, at::TensorOptions().dtype(at::kFloat)).reshape({-1, kMxGroup});
}

// Normal values over 80 binary orders of magnitude, one scale a group.
std::vector<float> random_weights() {
  std::mt19937 generator(5);
  std::normal_distribution<float> normal;
  std::vector<float> values;
  for (int group = 0; group < 2000; ++group) {
    for (int64_t i = 0; i < kMxGroup; ++i) values.push_back(std::ldexp(normal(generator), group % 160 - 120));
  }
  return values;
}

// Every tie and its two neighbours under several scales; signed zeros, subnormals, the largest float.
std::vector<float> corner_weights() {
  std::vector<float> values;
  for (const int exponent : {-149, -140, -128, -127, -126, -125, -3, 0, 1, 60, 124, 125}) {
    for (const float largest : {4.f, 5.f, 6.f, 7.f, 7.9999995f}) {
      std::vector<float> group = {largest, -largest, 0.f, -0.f};
      for (const float tie : {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.f}) {
        for (const float v : {std::nextafter(tie, 0.f), tie, std::nextafter(tie, 9.f), -tie}) group.push_back(v);
      }
      for (float v : group) {
        v = std::ldexp(v, exponent);
        values.push_back(std::isfinite(v) ? v : std::numeric_limits<float>::max());
      }
    }
  }
  for (int64_t i = 0; i < 2 * kMxGroup; ++i) values.push_back(i < kMxGroup ? 0.f : -0.f);
  return values;
}

TEST(Mxfp4FakeQuant, IsTheQuantiserBitForBit) {
  for (const std::vector<float>& values : {random_weights(), corner_weights()}) {
    ASSERT_EQ(values.size() % kMxGroup, 0u);
    EXPECT_TRUE(test::all_equal_bits(test::floats(mxfp4_round(rows_of_32(values))), through_the_quantiser(values)));
  }
}

TEST(Mxfp4FakeQuant, TwiceIsOnce) {
  for (const std::vector<float>& values : {random_weights(), corner_weights()}) {
    const at::Tensor once = mxfp4_round(rows_of_32(values));
    EXPECT_TRUE(test::all_equal_bits(test::floats(mxfp4_round(once)), test::floats(once)));
  }
}

TEST(Mxfp4FakeQuant, GradientPassesStraightThrough) {
  at::Tensor weights = rows_of_32(random_weights()).narrow(0, 100, 8).clone().reshape({2, 4, 32});
  weights.set_requires_grad(true);
  const at::Tensor factor = at::arange(256, at::kFloat).reshape({2, 4, 32});
  const at::Tensor rounded = mxfp4_fake_quant(weights);
  EXPECT_TRUE(rounded.equal(mxfp4_round(weights)));
  (rounded * factor).sum().backward();
  EXPECT_TRUE(weights.grad().equal(factor));
}

TEST(Mxfp4FakeQuant, LeavesWhatCannotBePacked) {
  const at::Tensor weights = at::full({3, 40}, 0.3f, at::kFloat);
  EXPECT_TRUE(mxfp4_fake_quant(weights).equal(weights));
}

}  // namespace
}  // namespace tandem::train
