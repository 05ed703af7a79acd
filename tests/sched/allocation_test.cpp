// A warm plan() … append_token() allocates nothing: every operator new of the process is counted meanwhile.
#include <gtest/gtest.h>

#include "sched/engine_stand_in.h"
#include "support/heap_calls.h"

namespace tandem {
namespace {

constexpr int32_t kRunning = 7;
constexpr int32_t kAll = 12;

// 6 decodes, a prefill of many steps, and a queue that finds no place, or places but no blocks.
void run_warm_steps(bool has_places) {
  SchedulerOptions options;
  options.token_budget = 64;
  options.max_running = has_places ? kAll : kRunning;
  options.step_seconds = 5e-3;
  options.high_utilisation = 2;
  test::FakeMemory memory({2000, 16, 1, INT64_MAX, false});
  Scheduler scheduler(options, memory);
  int64_t rows = 0;
  for (int step = 0; step < 300; ++step) {
    for (int32_t id = 1; id <= kAll; ++id) {
      if (step != (id <= kRunning ? 0 : 30)) continue;
      std::vector<TokenId> tokens(id == kRunning ? 20000 : 100, TokenId(id));
      ASSERT_TRUE(scheduler.add({SeqId(id), std::move(tokens), CacheScope{}, 0, 2000, 0, true}).is_ok());
    }
    const bool is_warm = step >= 40;
    // Room for what runs, a page each and a grid step of the prefill, and for nobody else.
    ASSERT_TRUE(step < 30 || !has_places || memory.hold(memory.blocks_available() - kRunning - 1));
    test::count_heap_calls(is_warm);
    const SchedulerStep& planned = scheduler.plan(0.01 * step);
    test::count_heap_calls(false);
    memory.give_back_held();
    for (const ScheduledRows& r : planned.rows) {
      memory.commit(r.id, scheduler.tokens(r.id));
      rows += r.num_tokens;
    }
    test::count_heap_calls(is_warm);
    scheduler.step_done(0.001);
    for (const ScheduledRows& r : planned.rows) {
      if (r.is_last) scheduler.append_token(r.id, TokenId(5));
    }
    test::count_heap_calls(false);
    ASSERT_TRUE(!is_warm || (planned.admitted.empty() && planned.preempted.empty())) << step;
    ASSERT_TRUE(!is_warm || planned.rows.size() == kRunning)
        << step << ": " << planned.rows.size() << " of " << scheduler.counts().running << ", " << has_places;
  }
  EXPECT_EQ(scheduler.counts().running, kRunning);
  EXPECT_EQ(scheduler.counts().waiting, kAll - kRunning);
  EXPECT_GT(rows, 300 * kRunning);
}

TEST(SchedulerAllocation, AWarmStepAllocatesNothing) {
  for (const bool has_places : {false, true}) {
    run_warm_steps(has_places);
    EXPECT_EQ(test::take_heap_calls(), 0) << has_places;
  }
}

}  // namespace
}  // namespace tandem
