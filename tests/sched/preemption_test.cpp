// When the pool is too small for all that run: who gives way, by which means, and that everybody finishes in the end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sched/engine_stand_in.h"
#include "sched/throttle.h"

namespace tandem {
namespace {

using test::EngineStandIn;
using test::FakeMemoryOptions;
using testing::ElementsAre;

SchedulerOptions options_with_swap(double bytes_per_second) {
  SchedulerOptions options;
  options.token_budget = 64;
  options.max_running = 8;
  options.swap_bytes_per_second = bytes_per_second;
  return options;
}

// Two sequences of a page table of 7 and a state each; the pool has 10 blocks: at token 65 the earlier one needs what
// the later one holds.
void run_into_the_wall(EngineStandIn& engine, int32_t first_priority = 0, int32_t second_priority = 0) {
  ASSERT_TRUE(engine.add(1, 40, 60, first_priority).is_ok());
  ASSERT_TRUE(engine.add(2, 40, 60, second_priority).is_ok());
  for (int i = 0; i < 100 && engine.scheduler.counts().preemptions == 0; ++i) ASSERT_TRUE(engine.step());
  ASSERT_EQ(engine.scheduler.counts().preemptions, 1);
}

TEST(Preemption, TheLatestGivesWayBySwapWhenThatIsCheaper) {
  EngineStandIn engine(options_with_swap(1e12), {10, 16, 1, INT64_MAX, false});
  run_into_the_wall(engine);
  EXPECT_TRUE(engine.memory.has_swapped(SeqId(2)));
  const int64_t computed = engine.scheduler.num_computed_tokens(SeqId(2));
  EXPECT_GT(computed, 60);
  int64_t prefilled = engine.clients.at(2).prefill_tokens;
  engine.on_finish = [&](int32_t id, const EngineStandIn::Client& c) {
    if (id == 2) prefilled = c.prefill_tokens;
  };
  ASSERT_TRUE(engine.run(1000));
  EXPECT_EQ(prefilled, 40) << "a swapped sequence computes nothing twice";
  engine.check_empty();
}

TEST(Preemption, ComputingAgainIsChosenWhenSwapIsDear) {
  EngineStandIn engine(options_with_swap(1), {10, 16, 1, INT64_MAX, false});
  run_into_the_wall(engine);
  EXPECT_EQ(engine.memory.num_swapped(), 0);
  EXPECT_EQ(engine.scheduler.counts().waiting, 1);
  EXPECT_EQ(engine.scheduler.num_computed_tokens(SeqId(2)), 0);
  const size_t known = engine.scheduler.tokens(SeqId(2)).size();
  EXPECT_GT(known, 60U) << "what it generated is kept";
  ASSERT_TRUE(engine.run(1000));
  EXPECT_EQ(engine.num_finished, 2);
  engine.check_empty();
}

TEST(Preemption, AFullSwapSpaceMeansComputingAgain) {
  EngineStandIn engine(options_with_swap(1e12), {10, 16, 1, 100, false});
  run_into_the_wall(engine);
  EXPECT_EQ(engine.memory.num_swapped(), 0);
  EXPECT_EQ(engine.scheduler.counts().waiting, 1);
  ASSERT_TRUE(engine.run(1000));
  engine.check_empty();
}

TEST(Preemption, TheLowestPriorityGivesWayThoughItCameFirst) {
  EngineStandIn engine(options_with_swap(1e12), {10, 16, 1, INT64_MAX, false});
  run_into_the_wall(engine, 3, 0);
  EXPECT_TRUE(engine.memory.has_swapped(SeqId(1)));
  ASSERT_TRUE(engine.run(1000));
  engine.check_empty();
}

TEST(Preemption, ASwappedSequenceResumesBeforeNewcomers) {
  EngineStandIn engine(options_with_swap(1e12), {10, 16, 1, INT64_MAX, false});
  run_into_the_wall(engine);
  ASSERT_TRUE(engine.add(3, 3, 3, -100).is_ok());
  while (engine.memory.has_swapped(SeqId(2))) {
    ASSERT_TRUE(engine.step());
    ASSERT_FALSE(engine.memory.holds(SeqId(3)) && engine.memory.has_swapped(SeqId(2)));
  }
  ASSERT_TRUE(engine.run(1000));
  engine.check_empty();
}

TEST(Preemption, ASwappedSequenceWaitsForTheThrottleThoughThereIsRoom) {
  EngineStandIn engine(options_with_swap(1e12), {40, 16, 1, INT64_MAX, false});
  ASSERT_TRUE(engine.memory.hold(30));
  run_into_the_wall(engine);
  engine.memory.give_back_held();
  for (int64_t i = 0; i < Throttle::kPressureSteps; ++i) {
    ASSERT_TRUE(engine.step());
    ASSERT_EQ(engine.scheduler.counts().concurrency, 1);
    ASSERT_TRUE(engine.memory.has_swapped(SeqId(2))) << i;
  }
  ASSERT_TRUE(engine.step());
  EXPECT_TRUE(engine.memory.holds(SeqId(2)));
  ASSERT_TRUE(engine.run(1000));
  engine.check_empty();
}

TEST(Preemption, WhatTheSwapCountedOnWasEvicted) {
  EngineStandIn engine(options_with_swap(1e12), {10, 16, 1, INT64_MAX, true});
  run_into_the_wall(engine);
  ASSERT_TRUE(engine.memory.has_swapped(SeqId(2)));
  engine.memory.evict_all();
  bool is_resumed = false;
  bool is_admitted = false;
  while (!engine.clients.empty()) {
    const SchedulerStep& step = engine.plan();
    ASSERT_FALSE(step.rows.empty());
    is_resumed |= std::count(step.resumed.begin(), step.resumed.end(), SeqId(2)) > 0;
    is_admitted |= std::count(step.admitted.begin(), step.admitted.end(), SeqId(2)) > 0;
    engine.finish_step(test::true_seconds(step));
  }
  EXPECT_FALSE(is_resumed);
  EXPECT_TRUE(is_admitted) << "it is computed again";
  EXPECT_EQ(engine.num_finished, 2);
  engine.check_empty();
}

TEST(Preemption, ComputedAgainItKeepsItsPlaceByArrival) {
  EngineStandIn engine(options_with_swap(0), {10, 16, 1, INT64_MAX, false});
  run_into_the_wall(engine);
  for (int32_t id = 3; id <= 6; ++id) {
    engine.now += 0.001;
    ASSERT_TRUE(engine.add(id, 40, 2).is_ok());
  }
  std::vector<int32_t> order;
  while (!engine.clients.empty()) {
    const SchedulerStep& step = engine.plan();
    for (SeqId id : step.admitted) order.push_back(id.value);
    engine.finish_step(test::true_seconds(step));
  }
  ASSERT_FALSE(order.empty());
  EXPECT_EQ(order[0], 2);
  engine.check_empty();
}

TEST(Preemption, PrefillsThatFillThePoolDoNotWaitForEachOther) {
  // Each prompt alone needs 9 of 10 blocks; admitted together on their first chunks they fill the pool.
  EngineStandIn engine(options_with_swap(0), {10, 16, 1, INT64_MAX, false});
  for (int32_t id = 1; id <= 5; ++id) ASSERT_TRUE(engine.add(id, 128, 1).is_ok());
  ASSERT_TRUE(engine.run(1000));
  engine.check_empty();
}

TEST(Preemption, InATinyPoolAnyNumberFinishes) {
  for (int64_t blocks = 2; blocks <= 12; ++blocks) {
    for (const double swap : {0.0, 1e5, 1e12}) {
      EngineStandIn engine(options_with_swap(swap), {blocks, 4, 1, INT64_MAX, blocks % 2 == 0});
      const int64_t longest = engine.scheduler.max_sequence_tokens();
      for (int32_t id = 1; id <= 12; ++id) {
        const int64_t prompt = 1 + id * 5 % (longest - 1);
        ASSERT_TRUE(engine.add(id, engine.text(id, prompt, prompt / 2), longest - prompt, id % 3).is_ok());
      }
      ASSERT_TRUE(engine.run(5000)) << blocks << " blocks";
      EXPECT_EQ(engine.num_finished, 12);
      engine.check_empty();
    }
  }
}

TEST(Preemption, CancellationLeavesNothingInAnyPhase) {
  // Waiting, prefilling, decoding, in flight, swapped, waiting to be computed again.
  for (int phase = 0; phase < 6; ++phase) {
    EngineStandIn engine(options_with_swap(phase == 5 ? 0 : 1e12), {10, 16, 1, INT64_MAX, false});
    int32_t id = 1;
    if (phase == 0) {
      ASSERT_TRUE(engine.add(1, 100, 5).is_ok());
    } else if (phase <= 3) {
      ASSERT_TRUE(engine.add(1, 100, 5).is_ok());
      for (int i = 0; i < (phase == 1 ? 1 : 3); ++i) ASSERT_TRUE(engine.step());
      if (phase == 3) engine.plan();
    } else {
      run_into_the_wall(engine);
      id = 2;
      ASSERT_EQ(engine.memory.has_swapped(SeqId(2)), phase == 4);
    }
    engine.remove(id);
    engine.remove(99);  // unknown: ignored
    ASSERT_FALSE(engine.memory.holds(SeqId(id)) || engine.memory.has_swapped(SeqId(id)));
    if (phase == 3) {
      engine.finish_step(0.001);
    }
    ASSERT_TRUE(engine.run(1000));
    engine.check_empty();
  }
}

}  // namespace
}  // namespace tandem
