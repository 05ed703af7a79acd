// The guard against ruined steps, and the log of a run.
#include "train/run/run_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "train/run/loss_guard.h"
#include "train/run_support.h"

namespace tandem::train {
namespace {

using test::RunFolder;
using ::testing::HasSubstr;

TEST(LossGuard, RefusesWhatIsNotFinite) {
  const LossGuard guard(3.0);
  EXPECT_FALSE(guard.refusal(1e9, 1e9).has_value());  // nothing to compare with
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(guard.refusal(bad, 1).value_or(""), HasSubstr("the loss is"));
    EXPECT_THAT(guard.refusal(1, bad).value_or(""), HasSubstr("the gradient norm is"));
  }
}

TEST(LossGuard, ComparesWithTheMedianOfAWindow) {
  LossGuard guard(2.0);
  for (const double loss : {9.0, 4.0, 5.0}) guard.accept(loss);
  EXPECT_FALSE(guard.refusal(10.0, 1).has_value());
  EXPECT_THAT(guard.refusal(10.1, 1).value_or(""), HasSubstr("explode_factor 2 times the recent 5"));
  for (size_t i = 0; i < LossGuard::kWindow; ++i) guard.accept(0.1);
  EXPECT_EQ(guard.recent().size(), LossGuard::kWindow);
  EXPECT_FALSE(guard.refusal(2.0, 1).has_value());  // a small loss may double and more: up to 2 × 1 nat
  EXPECT_TRUE(guard.refusal(2.1, 1).has_value());
  const LossGuard resumed(2.0, guard.recent());
  EXPECT_EQ(resumed.refusal(2.1, 1), guard.refusal(2.1, 1));
}

TEST(RunLog, KeepsWhatTheCheckpointHasSeen) {
  const RunFolder folder;
  {
    RunLog log = RunLog::open(folder.path("."), 0).value();
    for (int64_t step = 1; step <= 5; ++step) {
      ASSERT_TRUE(
          log.write(StepRecord{.step = step, .tokens = 10 * step, .loss = 2, .expert_load = {1.5, 2.5}}).is_ok());
      if (step == 3) {
        ASSERT_TRUE(log.write(ValidationRecord{.step = 3, .tokens = 30, .loss = std::numbers::ln2}).is_ok());
      }
    }
  }
  folder.write("log.jsonl", test::read_text(folder.path("log.jsonl")) + R"({"step": 3, "lo)");  // cut off
  RunLog log = RunLog::open(folder.path("."), 3).value();
  ASSERT_TRUE(log.write(StepRecord{.step = 4}).is_ok());
  ASSERT_TRUE(log.write(StepRecord{.step = 64, .expert_load_64 = {{1.0, 1.25}}}).is_ok());
  const std::vector<nlohmann::json> lines = folder.log(".");
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[2]["step"], 3);
  EXPECT_EQ(lines[2]["expert_load_mean"], 2.0);
  EXPECT_EQ(lines[3]["validation_bits"], 1.0);
  EXPECT_EQ(lines[4]["step"], 4);
  EXPECT_FALSE(lines[4].contains("expert_load"));  // a dense model has none
  EXPECT_FALSE(lines[4].contains("expert_load_64"));
  EXPECT_EQ(lines[5]["expert_load_64"], nlohmann::json({{"mean", 1.125}, {"worst", 1.25}}));
}

TEST(RunLog, LinesForPeople) {
  EXPECT_EQ(duration_text(59.4), "59s");
  EXPECT_EQ(duration_text(61), "1m01s");
  EXPECT_EQ(duration_text(3 * 3600 + 62), "3h01m");
  const StepRecord record = {.step = 12,
                             .loss = 3.5,
                             .learning_rate = 1e-3,
                             .grad_norm = 0.25,
                             .tokens_per_second = 12345,
                             .seconds = 61,
                             .expert_load = {1.0, 1.5}};
  EXPECT_EQ(progress_line(record, 100, 3600),
            "step 12/100  loss 3.5000  lr 1.00e-03  grad 0.25  12.3k tok/s  load 1.25  1m01s, 1h00m left");
}

}  // namespace
}  // namespace tandem::train
