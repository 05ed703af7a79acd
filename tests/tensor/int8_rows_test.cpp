#include "tensor/int8_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/mxfp4.h"

namespace tandem {
namespace {

struct Row {
  std::vector<std::byte> bytes;
  std::vector<float> values;
  float scale(int64_t column) const {
    bf16 stored;
    std::memcpy(static_cast<void*>(&stored), bytes.data() + values.size() + 2 * static_cast<size_t>(column / 64), 2);
    return to_f32(stored);
  }
};

Row quantized(const std::vector<float>& values) {
  WeightView view{.data = nullptr,
                  .scale = nullptr,
                  .rows = 1,
                  .cols = static_cast<int64_t>(values.size()),
                  .format = WeightFormat::kInt8};
  Row row{std::vector<std::byte>(static_cast<size_t>(view.row_bytes())), values};
  int8_quantize_row(values, row.bytes.data());
  view.data = row.bytes.data();
  weight_row_to_f32(view, 0, row.values);
  return row;
}

TEST(Int8Rows, ErrorIsAtMostHalfAScaleAndScalesAreTight) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const int64_t cols : {1, 63, 64, 65, 127, 128, 1000}) {
    for (const float size : {1.f, 1e-3f, 1e30f, 1e-30f}) {
      std::vector<float> values(static_cast<size_t>(cols));
      for (float& v : values) v = size * normal(random);
      const Row row = quantized(values);
      for (int64_t begin = 0; begin < cols; begin += 64) {
        float largest = 0;
        for (int64_t c = begin; c < std::min<int64_t>(cols, begin + 64); ++c) {
          largest = std::max(largest, std::fabs(values[static_cast<size_t>(c)]));
        }
        EXPECT_GE(row.scale(begin) * 127.f, largest * (1 - 0x1p-23f));
        EXPECT_LE(row.scale(begin) * 127.f, largest * (1 + 0x1.1p-7f));
      }
      for (int64_t c = 0; c < cols; ++c) {
        const auto i = static_cast<size_t>(c);
        // The quotient is rounded once before it is rounded to an integer.
        EXPECT_LE(std::fabs(row.values[i] - values[i]), row.scale(c) * 0.5f * (1 + 0x1p-16f)) << c << " of " << cols;
      }
    }
  }
}

TEST(Int8Rows, WhatInt8HoldsIsExact) {
  std::vector<float> values(100, 0.f);
  for (int c = 0; c < 64; ++c) values[static_cast<size_t>(c)] = 0.125f * static_cast<float>(4 * c - 127);
  values[70] = -127.f * 0x1p-40f;
  const Row row = quantized(values);
  EXPECT_EQ(row.values, values);
}

TEST(Int8Rows, ZerosStayAndWhatIsNotFiniteShows) {
  std::vector<float> values(192, 0.f);
  values[100] = std::numeric_limits<float>::infinity();
  values[190] = std::numeric_limits<float>::quiet_NaN();
  const Row row = quantized(values);
  for (size_t c = 0; c < 64; ++c) EXPECT_EQ(row.values[c], 0.f);
  for (size_t c = 64; c < 192; ++c) EXPECT_TRUE(std::isnan(row.values[c])) << c;
}

}  // namespace
}  // namespace tandem
