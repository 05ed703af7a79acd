// The limit of running sequences: its law, and what it is for: contexts that grow for long without a preemption storm.
#include "sched/throttle.h"

#include <gtest/gtest.h>

#include "sched/engine_stand_in.h"

namespace tandem {
namespace {

using test::EngineStandIn;
using test::FakeMemoryOptions;

TEST(Throttle, PressureCutsToFourFifthsOfThoseRunningOnce) {
  Throttle throttle(0.92, 0.80, 64);
  throttle.update({0.95, 40, 5, false});
  EXPECT_EQ(throttle.limit(), 32);
  throttle.update({0.95, 40, 5, false});
  EXPECT_EQ(throttle.limit(), 32) << "nobody is admitted: no further cut";
  throttle.update({0.95, 32, 5, false});
  EXPECT_EQ(throttle.limit(), 25);
  for (int i = 0; i < 100; ++i) throttle.update({0.99, throttle.limit(), 5, false});
  EXPECT_EQ(throttle.limit(), 1);
}

TEST(Throttle, APreemptionIsFeltForSomeSteps) {
  Throttle throttle(0.92, 0.80, 64);
  throttle.update({0.5, 20, 5, true});
  EXPECT_EQ(throttle.limit(), 16);
  for (int64_t i = 1; i < Throttle::kPressureSteps; ++i) {
    throttle.update({0.5, 20, 5, false});
    EXPECT_EQ(throttle.limit(), 16);
  }
  throttle.update({0.5, 20, 5, false});
  EXPECT_EQ(throttle.limit(), 17);
}

TEST(Throttle, RoomAndAQueueRaiseIt) {
  Throttle throttle(0.92, 0.80, 64);
  throttle.update({0.95, 1, 5, false});
  ASSERT_EQ(throttle.limit(), 1);
  throttle.update({0.5, 1, 0, false});
  EXPECT_EQ(throttle.limit(), 1) << "nobody waits";
  for (int i = 0; i < 19; ++i) throttle.update({0.5, 1, 1, false});
  EXPECT_EQ(throttle.limit(), 20);
  throttle.update({0.5, 1, 1, false});
  throttle.update({0.5, 1, 1, false});
  EXPECT_EQ(throttle.limit(), 23) << "21 → 23: 5 %, rounded up";
  for (int i = 0; i < 100; ++i) throttle.update({0.5, 1, 1, false});
  EXPECT_EQ(throttle.limit(), 64);
}

TEST(Throttle, BetweenTheLevelsItProbesSlowly) {
  Throttle throttle(0.92, 0.80, 64);
  throttle.update({0.95, 10, 5, false});
  ASSERT_EQ(throttle.limit(), 8);
  for (int64_t i = 1; i < Throttle::kProbeSteps; ++i) throttle.update({0.85, 8, 5, false});
  EXPECT_EQ(throttle.limit(), 8);
  throttle.update({0.85, 8, 5, false});
  EXPECT_EQ(throttle.limit(), 9);
}

struct Outcome {
  int64_t preemptions = 0;
  int64_t prefilled = 0;
  int64_t prompts = 0;
  int64_t steps = 0;
  int64_t most_running = 0;
  double used = 0;  // of the pool, on average while somebody waits
};

// Rollouts: each conversation comes back `turns` times with all it had and more, until its context is long.
Outcome simulate(double high, double low, double swap_bytes_per_second, int64_t conversations, int64_t turns) {
  SchedulerOptions options;
  options.token_budget = 512;
  options.max_running = 64;
  options.high_utilisation = high;
  options.low_utilisation = low;
  options.swap_bytes_per_second = swap_bytes_per_second;
  EngineStandIn engine(options, {1000, 16, 2, INT64_MAX, false});
  Outcome outcome;
  int32_t next = 1;
  std::map<int32_t, int64_t> turn;
  std::vector<std::pair<int64_t, int64_t>> returning;  // turn, context
  engine.on_finish = [&](int32_t id, const EngineStandIn::Client& c) {
    outcome.prefilled += c.prefill_tokens;
    if (turn[id] + 1 < turns) returning.emplace_back(turn[id] + 1, c.prompt + c.generated + 50);
  };
  const auto add = [&](int64_t of_turn, int64_t context) {
    turn[next] = of_turn;
    outcome.prompts += context;
    ASSERT_TRUE(engine.add(next++, context, 150).is_ok());
  };
  for (int64_t i = 0; i < conversations; ++i) add(0, 50 + i % 17 * 10);
  int64_t queued_steps = 0;
  while (!engine.clients.empty() && outcome.steps < 200000) {
    if (!engine.step()) break;
    ++outcome.steps;
    outcome.most_running = std::max(outcome.most_running, engine.scheduler.counts().running);
    if (engine.scheduler.counts().waiting > 0) {
      ++queued_steps;
      outcome.used += 1 - static_cast<double>(engine.memory.blocks_available()) / 1000;
    }
    for (const auto& [of_turn, context] : returning) add(of_turn, context);
    returning.clear();
  }
  EXPECT_TRUE(engine.clients.empty()) << "somebody never finished";
  EXPECT_EQ(engine.num_finished, conversations * turns);
  outcome.preemptions = engine.scheduler.counts().preemptions;
  outcome.used /= static_cast<double>(std::max<int64_t>(queued_steps, 1));
  return outcome;
}

// 64 conversations of 8 turns; at its longest one has 1700 tokens, 109 of the pool's 1000 blocks.
TEST(Throttle, GrowingContextsDoNotMakeAPreemptionStorm) {
  for (const double swap : {0.0, 1e8}) {
    const Outcome with = simulate(0.92, 0.80, swap, 64, 8);
    const Outcome without = simulate(1e9, 1e9, swap, 64, 8);  // cut by preemptions alone
    EXPECT_LE(with.preemptions, 64) << "of 512 requests";
    EXPECT_LT(with.preemptions, without.preemptions);
    EXPECT_LT(static_cast<double>(with.prefilled), 1.12 * static_cast<double>(with.prompts)) << "computed twice";
    EXPECT_GT(with.used, 0.8) << "and the pool is used";
    EXPECT_GT(with.most_running, 20);
    EXPECT_LT(static_cast<double>(with.steps), 1.05 * static_cast<double>(without.steps));
    RecordProperty(swap > 0 ? "preemptions_with_swap" : "preemptions", std::to_string(with.preemptions));
  }
}

}  // namespace
}  // namespace tandem
