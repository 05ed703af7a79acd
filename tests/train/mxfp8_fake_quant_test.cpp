#include "train/modules/mxfp8_fake_quant.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "support/compare.h"
#include "tensor/mxfp4.h"
#include "train/tensors.h"

namespace tandem::train {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

at::Tensor rows_of_32(const std::vector<float>& values) {
  return at::tensor(values, at::TensorOptions().dtype(at::kFloat)).reshape({-1, kMxGroup});
}

std::vector<float> reference(std::vector<float> values) {
  tandem::mxfp8_round(values);
  return values;
}

// Normal values over all binary orders of magnitude, the elements of a group up to 2^±20 apart in every other group.
std::vector<float> random_values() {
  std::mt19937 generator(7);
  std::normal_distribution<float> normal;
  std::vector<float> values;
  for (int group = 0; group < 3000; ++group) {
    for (int64_t i = 0; i < kMxGroup; ++i) {
      const int spread = group % 2 == 0 ? 0 : static_cast<int>(generator() % 41) - 20;
      const float v = std::ldexp(normal(generator), group % 270 - 145 + spread);
      values.push_back(std::isfinite(v) ? v : std::numeric_limits<float>::max());
    }
  }
  return values;
}

// Every E4M3 value, every tie and the ties' neighbours, under the scales of subnormal, middling and the largest floats.
std::vector<float> edge_values() {
  std::vector<float> steps = {0.f};
  for (int exponent = -6; exponent <= 8; ++exponent) {
    for (int mantissa = exponent == -6 ? 0 : 8; mantissa < 16; ++mantissa) {
      steps.push_back(std::ldexp(static_cast<float>(mantissa), exponent - 3));
    }
  }
  std::vector<float> values;
  for (const int exponent : {-149, -140, -135, -128, -127, -126, -119, -20, -1, 0, 1, 40, 118, 119}) {
    for (size_t i = 0; i + 1 < steps.size(); ++i) {
      const float tie = (steps[i] + steps[i + 1]) / 2;
      std::vector<float> group = {256.f, 447.f, 448.f, 464.f, 479.f, 511.99997f, -0.f, 0.f};  // scale, saturation
      for (const float v : {steps[i], std::nextafter(tie, 0.f), tie, std::nextafter(tie, 1e9f)}) {
        group.insert(group.end(), {v, -v});
      }
      group.resize(kMxGroup, -tie);
      for (const float v : group) {
        const float scaled = std::ldexp(v, exponent);
        values.push_back(std::isfinite(scaled) ? scaled : std::copysign(std::numeric_limits<float>::max(), scaled));
      }
    }
  }
  for (int64_t i = 0; i < 2 * kMxGroup; ++i) values.push_back(i % 3 == 0 ? 0.f : -0.f);
  return values;
}

TEST(Mxfp8FakeQuant, IsTheReferenceBitForBit) {
  for (const std::vector<float>& values : {random_values(), edge_values()}) {
    ASSERT_EQ(values.size() % kMxGroup, 0u);
    EXPECT_TRUE(test::all_equal_bits(test::floats(mxfp8_round(rows_of_32(values))), reference(values)));
  }
}

TEST(Mxfp8FakeQuant, TreatsNansAndInfinitiesLikeTheReference) {
  std::vector<float> values(4 * kMxGroup, 0.3f);
  values[3] = std::nanf("");
  values[kMxGroup + 5] = kInfinity;
  values[kMxGroup + 6] = std::nanf("");
  values[2 * kMxGroup + 1] = -kInfinity;
  for (size_t i = 3 * kMxGroup; i < values.size(); ++i) values[i] = std::nanf("");
  const std::vector<float> actual = test::floats(mxfp8_round(rows_of_32(values))), expected = reference(values);
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(actual[i])) << i;
    } else {
      EXPECT_EQ(actual[i], expected[i]) << i;
    }
  }
}

TEST(Mxfp8FakeQuant, GroupsRunAlongTheLastAxis) {
  const at::Tensor x = rows_of_32(random_values()).narrow(0, 600, 24).reshape({2, 4, 96});
  EXPECT_TRUE(test::all_equal_bits(test::floats(mxfp8_round(x)), reference(test::floats(x))));
  const at::Tensor turned = x.transpose(0, 1);  // not contiguous
  EXPECT_TRUE(mxfp8_round(turned).equal(mxfp8_round(x).transpose(0, 1)));
  EXPECT_EQ(mxfp8_round(at::empty({0, 64}, at::kFloat)).sizes(), (std::vector<int64_t>{0, 64}));
}

TEST(Mxfp8FakeQuant, GradientPassesStraightThrough) {
  at::Tensor x = rows_of_32(random_values()).narrow(0, 700, 8).clone().reshape({2, 4, 32});
  x.set_requires_grad(true);
  const at::Tensor factor = at::arange(256, at::kFloat).reshape({2, 4, 32});
  const at::Tensor rounded = mxfp8_fake_quant(x);
  EXPECT_TRUE(rounded.equal(mxfp8_round(x)));
  EXPECT_FALSE(rounded.equal(x));
  (rounded * factor).sum().backward();
  EXPECT_TRUE(x.grad().equal(factor));
}

// Four significant bits: a bfloat16 holds every result whose scale is not at the bottom of the range.
TEST(Mxfp8FakeQuant, IsExactInBfloat16) {
  const at::Tensor x = at::linspace(-3, 5, 320, at::kFloat).reshape({5, 64}).to(at::kBFloat16);
  const at::Tensor rounded = mxfp8_fake_quant(x);
  EXPECT_EQ(rounded.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(rounded.to(at::kFloat).equal(mxfp8_round(x.to(at::kFloat))));
}

}  // namespace
}  // namespace tandem::train
