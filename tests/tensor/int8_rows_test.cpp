#include "tensor/int8_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tensor/mxfp4.h"

namespace tandem {
namespace {

struct Row {
  std::vector<int8_t> codes;  // with those behind the row's end
  float scale = 0.f;
  std::vector<float> values;
};

Row quantized(const std::vector<float>& values) {
  WeightView view;
  view.rows = 1;
  view.cols = static_cast<int64_t>(values.size());
  view.format = WeightFormat::kInt8;
  Row row{std::vector<int8_t>(static_cast<size_t>(view.row_bytes()), 99), 0.f, values};
  row.scale = int8_quantize_row(values, row.codes.data());
  view.data = row.codes.data();
  view.scale = reinterpret_cast<const uint8_t*>(&row.scale);
  weight_row_to_f32(view, 0, row.values);
  return row;
}

float largest_magnitude(const std::vector<float>& values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

TEST(Int8Rows, ErrorIsAtMostHalfAScaleAndScalesAreTight) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const size_t cols : {1, 63, 64, 65, 127, 128, 1000}) {
    for (const float size : {1.f, 1e-3f, 1e30f, 1e-30f}) {
      std::vector<float> values(cols);
      for (float& v : values) v = size * normal(random);
      const Row row = quantized(values);
      const float largest = largest_magnitude(values);
      EXPECT_GE(row.scale * 127.f, largest * (1 - 0x1p-22f));
      EXPECT_LE(row.scale * 127.f, largest * (1 + 0x1p-15f));
      for (size_t c = 0; c < cols; ++c) {
        // The quotient is rounded once before it is rounded to an integer.
        EXPECT_LE(std::fabs(row.values[c] - values[c]), row.scale * 0.5f * (1 + 0x1p-16f)) << c << " of " << cols;
        EXPECT_EQ(static_cast<double>(row.values[c]), static_cast<double>(row.codes[c]) * double{row.scale})
            << "code times scale is exact in f32";
      }
    }
  }
}

TEST(Int8Rows, ARowFillsWholeLinesWithZeros) {
  for (const size_t cols : {1, 63, 64, 65, 130}) {
    const Row row = quantized(std::vector<float>(cols, -3.f));
    EXPECT_EQ(row.codes.size() % 64, 0u);
    EXPECT_LT(row.codes.size() - cols, 64u);
    for (size_t c = 0; c < row.codes.size(); ++c) EXPECT_EQ(row.codes[c], c < cols ? -127 : 0) << c << " of " << cols;
  }
}

TEST(Int8Rows, WhatInt8HoldsIsExact) {
  std::vector<float> values(100, 0.f);
  for (int c = 0; c < 64; ++c) values[static_cast<size_t>(c)] = 0.125f * static_cast<float>(4 * c - 127);
  values[70] = 127.f * 0.125f;
  EXPECT_EQ(quantized(values).values, values);
  EXPECT_EQ(quantized({-127.f * 0x1p-40f, 5.f * 0x1p-40f}).values,
            (std::vector<float>{-127.f * 0x1p-40f, 5.f * 0x1p-40f}));
}

TEST(Int8Rows, EveryMagnitudeHasAScale) {
  const float huge = std::numeric_limits<float>::max();
  const Row largest = quantized({huge, -huge, huge / 2});
  EXPECT_LE(std::fabs(largest.values[2] - huge / 2), largest.scale * 0.5f * (1 + 0x1p-16f));
  const Row subnormal = quantized({0x1p-130f, -0x1p-149f});
  EXPECT_GT(subnormal.scale, 0.f);
  for (const int8_t code : subnormal.codes) EXPECT_GE(code, -127);
}

TEST(Int8Rows, ZerosStayAndWhatIsNotFiniteShows) {
  const Row zeros = quantized(std::vector<float>(70, 0.f));
  EXPECT_EQ(zeros.values, std::vector<float>(70, 0.f));
  EXPECT_EQ(zeros.scale, 0.f);
  for (const float wrong : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values(192, 1.f);
    values[190] = wrong;
    for (const float value : quantized(values).values) EXPECT_TRUE(std::isnan(value)) << wrong;
  }
}

}  // namespace
}  // namespace tandem
