#include "sched/step_time.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "sched/chunk.h"

namespace tandem {
namespace {

constexpr double kConstant = 3e-3;
constexpr double kRow = 2e-5;
constexpr double kContext = 4e-9;

double truth(const StepTime::Work& w) { return kConstant + kRow * w.rows + kContext * w.row_context; }

StepTime::Work random_work(std::mt19937_64& random) {
  const double rows = std::uniform_real_distribution<>(1, 512)(random);
  return {rows, rows * std::uniform_real_distribution<>(1, 30000)(random)};
}

TEST(StepTime, PredictsNothingBeforeTheFirstStep) {
  const StepTime step_time;
  EXPECT_EQ(step_time.predict({100, 1e6}), 0);
  EXPECT_EQ(step_time.predict_prefill(0, 1000, 100), 0);
  EXPECT_EQ(step_time.num_observed(), 0);
}

TEST(StepTime, FindsTheCoefficientsOfAStep) {
  std::mt19937_64 random(1);
  StepTime step_time;
  for (int i = 0; i < 100; ++i) {
    const StepTime::Work work = random_work(random);
    step_time.observe(work, truth(work));
  }
  for (int i = 0; i < 100; ++i) {
    const StepTime::Work work = random_work(random);
    EXPECT_NEAR(step_time.predict(work), truth(work), 1e-4 * truth(work));
  }
  // 10 steps of 100 rows that see 1 … 1000 tokens.
  EXPECT_NEAR(step_time.predict_prefill(0, 1000, 100), 10 * kConstant + 1000 * kRow + 500500 * kContext, 1e-5);
}

TEST(StepTime, NoiseLeavesItCloseAndNeverNegative) {
  std::mt19937_64 random(2);
  std::normal_distribution<> noise(1, 0.1);
  StepTime step_time;
  for (int i = 0; i < 1000; ++i) {
    const StepTime::Work work = random_work(random);
    step_time.observe(work, truth(work) * noise(random));
    EXPECT_GE(step_time.predict({1, 0}), 0);
    EXPECT_GE(step_time.predict({1e6, 0}), step_time.predict({1, 0}));
    EXPECT_GE(step_time.predict({1, 1e9}), step_time.predict({1, 0}));
  }
  // 200 steps of 10 % noise: within 10 % of the largest, by far.
  const StepTime::Work work = {512, 512.0 * 30000};
  EXPECT_NEAR(step_time.predict(work), truth(work), 0.1 * truth(work));
}

TEST(StepTime, StepsThatAreAllAlikeAreStillPredicted) {
  StepTime step_time;
  for (int i = 0; i < 300; ++i) step_time.observe({8, 8.0 * 1000}, truth({8, 8.0 * 1000}));
  EXPECT_NEAR(step_time.predict({8, 8.0 * 1000}), truth({8, 8.0 * 1000}), 1e-3 * truth({8, 8.0 * 1000}));
}

TEST(StepTime, WhatDecodesCannotTellApartIsRemembered) {
  std::mt19937_64 random(3);
  StepTime step_time;
  for (int i = 0; i < 200; ++i) {
    const StepTime::Work work = random_work(random);
    step_time.observe(work, truth(work));
  }
  const StepTime::Work decode = {8, 8.0 * 1000};
  for (int i = 0; i < 3000; ++i) step_time.observe(decode, truth(decode));
  const StepTime::Work prefill = {512, 512.0 * 5000};
  EXPECT_NEAR(step_time.predict(prefill), truth(prefill), 0.05 * truth(prefill));
}

TEST(StepTime, AStallCountsForLittleAndAChangeIsFollowed) {
  std::mt19937_64 random(4);
  StepTime step_time;
  for (int i = 0; i < 300; ++i) {
    const StepTime::Work work = random_work(random);
    step_time.observe(work, truth(work));
  }
  step_time.observe({100, 1e5}, 60);  // a minute
  const StepTime::Work work = {100, 1e5};
  EXPECT_LT(step_time.predict(work), 1.5 * truth(work));
  for (int i = 0; i < 3000; ++i) {
    const StepTime::Work next = random_work(random);
    step_time.observe(next, 20 * truth(next));
  }
  EXPECT_NEAR(step_time.predict(work), 20 * truth(work), 0.01 * 20 * truth(work));
}

TEST(StepTime, NonsenseIsIgnored) {
  StepTime step_time;
  step_time.observe({10, 10}, -1);
  step_time.observe({10, 10}, std::numeric_limits<double>::quiet_NaN());
  step_time.observe({0, 0}, 1);
  EXPECT_EQ(step_time.num_observed(), 0);
}

TEST(Chunk, EndsOnTheGridCountedFromTokenZeroOrAtTheEnd) {
  for (int64_t grid : {1, 4, 16}) {
    for (int64_t known = 1; known <= 70; ++known) {
      for (int64_t begin = 0; begin < known; ++begin) {
        for (int64_t rows = 0; rows <= 80; ++rows) {
          const int64_t end = chunk_end(begin, known, rows, grid);
          ASSERT_GE(end, begin);
          ASSERT_LE(end - begin, rows);
          ASSERT_TRUE(end == begin || end == known || end % grid == 0);
          // Progress whenever the grid allows it.
          ASSERT_TRUE(rows < grid || end > begin);
          // A rest of one row only where one grid step is all there is room for.
          ASSERT_TRUE(end != known - 1 || end - begin <= grid);
        }
      }
    }
  }
}

TEST(Chunk, RowsWithinATimeAreTheMost) {
  StepTime step_time;
  std::mt19937_64 random(5);
  for (int i = 0; i < 100; ++i) {
    const StepTime::Work work = random_work(random);
    step_time.observe(work, truth(work));
  }
  const StepTime::Work decodes = {20, 20.0 * 4000};
  for (int64_t begin : {0, 100, 20000}) {
    for (double seconds : {1e-3, 4e-3, 6e-3, 1.0}) {
      const auto with = [&](int64_t rows) {
        const StepTime::Work chunk = chunk_work(begin, begin + rows);
        return step_time.predict({decodes.rows + chunk.rows, decodes.row_context + chunk.row_context});
      };
      const int64_t rows = rows_within(step_time, decodes, begin, 300, seconds);
      EXPECT_TRUE(rows == 0 || with(rows) <= seconds);
      EXPECT_TRUE(rows == 300 || with(rows + 1) > seconds);
    }
  }
}

}  // namespace
}  // namespace tandem
