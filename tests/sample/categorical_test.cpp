#include "sample/categorical.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "sample/philox.h"
#include "support/effort.h"

namespace tandem {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Lengths around the vectors and the blocks of the scan.
constexpr size_t kLengths[] = {1, 3, 4, 15, 16, 17, 1023, 1024, 1025, 1039, 1040, 2048, 5000};

std::vector<float> random_logits(size_t count, uint64_t seed, int levels) {
  std::vector<float> logits(count);
  for (size_t i = 0; i < count; ++i) {
    logits[i] = std::floor(static_cast<float>(philox_uniform(seed, i) * levels)) - static_cast<float>(levels) / 2;
  }
  return logits;
}

TEST(Categorical, ArgMaxIsTheFirstOfTheLargest) {
  EXPECT_FALSE(arg_max({}).has_value());
  EXPECT_FALSE(finite_arg_max({}).has_value());
  for (const size_t count : kLengths) {
    for (int64_t seed = 0; seed < test::effort(20); ++seed) {
      // Few levels: many ties, inside a block and across them.
      const std::vector<float> logits = random_logits(count, static_cast<uint64_t>(seed), seed % 2 == 0 ? 3 : 100000);
      const auto expected = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      EXPECT_EQ(arg_max(logits), expected) << count << " logits, seed " << seed;
      EXPECT_EQ(finite_arg_max(logits), expected) << count << " logits, seed " << seed;
    }
  }
}

TEST(Categorical, OneBadLogitAnywhereIsFound) {
  for (const size_t count : kLengths) {
    std::vector<float> logits = random_logits(count, 5, 1000);
    for (size_t i = 0; i < count; i += i < 40 || i + 40 > count ? 1 : 13) {
      for (const float bad : {kInf, -kInf, std::nanf(""), -std::nanf("")}) {
        const float good = std::exchange(logits[i], bad);
        EXPECT_FALSE(finite_arg_max(logits).has_value()) << bad << " at " << i << " of " << count;
        logits[i] = good;
      }
    }
    EXPECT_TRUE(finite_arg_max(logits).has_value());
  }
}

TEST(Categorical, ForbiddenTokensDoNotWinAndMayBeAll) {
  std::vector<float> logits(2000, -kInf);
  EXPECT_FALSE(arg_max(logits).has_value());
  logits[1500] = -std::numeric_limits<float>::max();
  EXPECT_EQ(arg_max(logits), 1500);
}

}  // namespace
}  // namespace tandem
