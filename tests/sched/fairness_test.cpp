// Who waits for whom, on a clock that only the tests move: aging, cost classes, shares of tokens and of blocks.
#include <gtest/gtest.h>

#include <array>

#include "sched/class_budgets.h"
#include "sched/engine_stand_in.h"

namespace tandem {
namespace {

using test::EngineStandIn;
using test::FakeMemoryOptions;

const FakeMemoryOptions kRoomy = {1 << 13, 16, 1, INT64_MAX, false};

SchedulerOptions one_class() {
  SchedulerOptions options;
  options.token_budget = 64;
  options.max_running = 2;
  options.aging_seconds = 0.5;
  options.classes = {{INT64_MAX, 1.0}};
  return options;
}

TEST(Fairness, AStreamOfHighPriorityDoesNotStarveALowOne) {
  EngineStandIn engine(one_class(), kRoomy);
  // A stream of more than two places can serve; the low one, 3 levels below, comes after 0.1 s and is behind all that
  // come until 1.5 s after it.
  constexpr int32_t kLow = 1;
  int32_t next = 2;
  std::map<int32_t, std::pair<double, double>> served;  // arrived, scheduled
  engine.on_finish = [&](int32_t id, const EngineStandIn::Client& c) { served[id] = {c.arrived, *c.first_scheduled}; };
  for (double next_arrival = 0; !served.contains(kLow);) {
    for (; next_arrival <= engine.now; next_arrival += 0.004) {
      ASSERT_TRUE(engine.scheduler.counts().waiting >= 1000 || engine.add(next++, 40, 10, 0).is_ok());
    }
    if (engine.now > 0.1 && engine.clients.size() + served.size() == static_cast<size_t>(next - 2)) {
      ASSERT_TRUE(engine.add(kLow, 40, 10, 3).is_ok());
    }
    ASSERT_TRUE(engine.step());
    ASSERT_LT(engine.now, 60.0) << "it starves";
  }
  const auto [low_arrived, low_scheduled] = served.at(kLow);
  int64_t overtaken_by = 0;
  for (const auto& [id, times] : served) {
    if (id == kLow || times.second >= low_scheduled) continue;
    EXPECT_LE(times.first, low_arrived + 1.5) << "who came so late is behind it";
    overtaken_by += times.first > low_arrived ? 1 : 0;
  }
  EXPECT_GT(overtaken_by, 50) << "priority means something";
}

TEST(Fairness, EqualsAreServedInOrderOfArrival) {
  EngineStandIn engine(one_class(), kRoomy);
  for (int32_t id = 1; id <= 30; ++id) {
    engine.now += 1e-6;
    ASSERT_TRUE(engine.add(id, 10 + id % 7, 5).is_ok());
  }
  int32_t last = 0;
  while (!engine.clients.empty()) {
    const SchedulerStep& step = engine.plan();
    for (SeqId id : step.admitted) {
      EXPECT_EQ(id.value, last + 1);
      last = id.value;
    }
    engine.finish_step(0.001);
  }
}

TEST(Fairness, ALargeRequestIsNotOvertakenForEverBySmallOnesThatFit) {
  SchedulerOptions options = one_class();
  options.max_running = 6;
  options.token_budget = 512;
  // The large one's first chunk needs 21 of 40 blocks, the small ones 3 each and come without end.
  EngineStandIn engine(options, {40, 16, 1, INT64_MAX, false});
  int32_t next = 2;
  for (; next < 8; ++next) ASSERT_TRUE(engine.add(next, 20, 12).is_ok());
  ASSERT_TRUE(engine.step());
  ASSERT_TRUE(engine.add(1, 320, 2).is_ok());
  bool is_done = false;
  engine.on_finish = [&](int32_t id, const EngineStandIn::Client&) { is_done |= id == 1; };
  for (int i = 0; i < 200 && !is_done; ++i) {
    while (engine.clients.size() < 12) ASSERT_TRUE(engine.add(next++, 20, 12).is_ok());
    ASSERT_TRUE(engine.step());
  }
  EXPECT_TRUE(is_done);
}

SchedulerOptions two_classes(double short_share, double long_share) {
  SchedulerOptions options;
  options.token_budget = 128;
  options.max_running = 100;
  options.classes = {{100, short_share}, {INT64_MAX, long_share}};
  return options;
}

TEST(Fairness, PrefillTokensFollowTheSharesWhileAllWait) {
  for (const double share : {0.2, 0.5, 0.8}) {
    EngineStandIn engine(two_classes(share, 1 - share), kRoomy);
    int32_t next = 1;
    std::array<int64_t, 2> tokens = {};
    std::array<int64_t, 2> alive = {};
    engine.on_finish = [&](int32_t, const EngineStandIn::Client& c) { --alive[c.prompt > 100 ? 1 : 0]; };
    for (int i = 0; i < 3000; ++i) {
      for (int64_t c : {0, 1}) {
        for (; alive[c] < 10; ++alive[c]) ASSERT_TRUE(engine.add(next++, c == 0 ? 90 : 900, 1).is_ok());
      }
      engine.plan();
      for (const ScheduledRows& r : engine.step_rows) {
        tokens[engine.clients.at(r.id.value).prompt > 100 ? 1 : 0] += r.num_tokens;
      }
      engine.finish_step(0.001);
    }
    const double sum = static_cast<double>(tokens[0] + tokens[1]);
    EXPECT_GT(sum, 3000 * (128 - 16)) << "only what is less than a grid step is left";
    // Start-time fair queueing: no class is off by more than a chunk of each, 128 of more than 336000 tokens.
    EXPECT_NEAR(static_cast<double>(tokens[0]) / sum, share, 0.001);
  }
}

TEST(Fairness, AShortRequestDoesNotWaitForABurstOfLongOnes) {
  EngineStandIn engine(two_classes(0.5, 0.5), kRoomy);
  for (int32_t id = 1; id <= 50; ++id) ASSERT_TRUE(engine.add(id, 2000, 1).is_ok());
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(engine.step());
  ASSERT_TRUE(engine.add(100, 64, 1).is_ok());
  bool is_done = false;
  engine.on_finish = [&](int32_t id, const EngineStandIn::Client&) { is_done |= id == 100; };
  int steps = 0;
  for (; steps < 100 && !is_done; ++steps) ASSERT_TRUE(engine.step());
  EXPECT_LE(steps, 2) << "its class has had nothing: it is next";
}

TEST(Fairness, AnUnusedShareIsLentAndKeepsNoCredit) {
  EngineStandIn engine(two_classes(0.5, 0.5), kRoomy);
  for (int32_t id = 1; id <= 20; ++id) ASSERT_TRUE(engine.add(id, 1280, 1).is_ok());
  for (int i = 0; i < 100; ++i) {
    const SchedulerStep& step = engine.plan();
    int64_t rows = 0;
    for (const ScheduledRows& r : step.rows) rows += r.num_tokens;
    EXPECT_EQ(rows, 128) << "the long ones use all";
    engine.finish_step(0.001);
  }
  // 100 steps of long ones are no debt: from now on every second row is theirs, not none for 100 steps.
  int32_t next = 1000;
  int64_t long_tokens = 0;
  for (int i = 0; i < 40; ++i) {
    while (engine.scheduler.counts().waiting < 40) ASSERT_TRUE(engine.add(next++, 64, 1).is_ok());
    engine.plan();
    for (const ScheduledRows& r : engine.step_rows) long_tokens += r.id.value < 1000 ? r.num_tokens : 0;
    engine.finish_step(0.001);
  }
  EXPECT_NEAR(static_cast<double>(long_tokens), 0.5 * 40 * 128, 2 * 128);
}

// Blocks of running sequences of short or long requests.
int64_t blocks_of(const EngineStandIn& engine, bool is_long) {
  int64_t blocks = 0;
  for (const auto& [id, c] : engine.clients) {
    if (!engine.memory.holds(SeqId(id)) || (c.prompt > 100) != is_long) continue;
    blocks += engine.memory.blocks_needed(static_cast<int64_t>(engine.scheduler.tokens(SeqId(id)).size()), 0);
  }
  return blocks;
}

TEST(Fairness, ABurstTakesLentBlocksAndGivesThemBackAtTheNextAdmissions) {
  EngineStandIn engine(two_classes(0.5, 0.5), {300, 16, 1, INT64_MAX, false});
  int32_t next = 1;
  const auto add_short = [&] { return engine.add(next++, 60, 40); };  // 5 … 8 blocks
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(add_short().is_ok());
  int64_t most = 0;
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(engine.step());
    most = std::max(most, blocks_of(engine, false));
  }
  EXPECT_GT(most, 180) << "nobody else wants the other half";
  for (int32_t id = 10000; id < 10040; ++id) ASSERT_TRUE(engine.add(id, 200, 40).is_ok());  // 14 … 16 blocks
  int64_t most_long = 0;
  for (int i = 0; i < 600; ++i) {
    while (engine.scheduler.counts().waiting < 100) ASSERT_TRUE(add_short().is_ok());
    bool does_long_wait = false;
    for (const auto& [id, c] : engine.clients) does_long_wait |= c.prompt > 100 && !engine.memory.holds(SeqId(id));
    const int64_t long_blocks = blocks_of(engine, true);
    const bool is_long_owed = does_long_wait && long_blocks + engine.memory.blocks_needed(240, 0) <= 150;
    const SchedulerStep& step = engine.plan();
    for (SeqId id : step.admitted) {
      if (!is_long_owed || blocks_of(engine, true) > long_blocks) continue;
      EXPECT_TRUE(engine.clients.at(id.value).prompt > 100 || blocks_of(engine, false) <= 150)
          << "short ones beyond their share were admitted though long ones within theirs wait";
    }
    most_long = std::max(most_long, blocks_of(engine, true));
    engine.finish_step(0.001);
    if (!does_long_wait) break;
  }
  EXPECT_GT(most_long, 100) << "the half was reclaimed";
}

TEST(Fairness, AClassWhoseShareIsLessThanARequestStillRuns) {
  EngineStandIn engine(two_classes(0.99, 0.01), {100, 16, 1, INT64_MAX, false});
  int32_t next = 1;
  bool is_done = false;
  engine.on_finish = [&](int32_t id, const EngineStandIn::Client&) { is_done |= id == 100000; };
  for (int i = 0; i < 3000 && !is_done; ++i) {
    while (engine.scheduler.counts().waiting < 20) ASSERT_TRUE(engine.add(next++, 60, 20).is_ok());
    ASSERT_TRUE(i != 50 || engine.add(100000, 400, 20).is_ok());
    ASSERT_TRUE(engine.step());
  }
  EXPECT_TRUE(is_done);
}

TEST(ClassBudgets, ClassifiesByUncachedTokensAndTheLastTakesTheRest) {
  const ClassBudgets budgets({{10, 1}, {20, 1}, {30, 2}});
  EXPECT_EQ(budgets.classify(0), 0);
  EXPECT_EQ(budgets.classify(10), 0);
  EXPECT_EQ(budgets.classify(11), 1);
  EXPECT_EQ(budgets.classify(21), 2);
  EXPECT_EQ(budgets.classify(1000), 2);
  EXPECT_TRUE(budgets.is_within_share(2, 50, 100));  // shares in parts of their sum
  EXPECT_FALSE(budgets.is_within_share(2, 51, 100));
  EXPECT_EQ(ClassBudgets({}).size(), 1);
}

}  // namespace
}  // namespace tandem
