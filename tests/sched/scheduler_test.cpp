// The laws of one step: order, budgets, grid, modes, admission, refusals, preemption, fork, cancellation.
#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include "sched/engine_stand_in.h"

namespace tandem {
namespace {

using test::EngineStandIn;
using test::FakeMemoryOptions;

SchedulerOptions small_options() {
  SchedulerOptions options;
  options.token_budget = 64;
  options.max_running = 8;
  return options;
}

const FakeMemoryOptions kRoomy = {4096, 16, 1, INT64_MAX, false};

TEST(Scheduler, APromptIsComputedInChunksThenDecodedRowByRow) {
  EngineStandIn engine(small_options(), kRoomy);
  ASSERT_TRUE(engine.add(1, 150, 3).is_ok());
  std::vector<std::pair<int64_t, int64_t>> chunks;
  while (!engine.clients.empty()) {
    const SchedulerStep& step = engine.plan();
    ASSERT_EQ(step.rows.size(), 1U);
    chunks.emplace_back(step.rows[0].begin, step.rows[0].num_tokens);
    engine.finish_step(0.001);
  }
  const std::vector<std::pair<int64_t, int64_t>> expected = {{0, 64}, {64, 64}, {128, 22}, {150, 1}, {151, 1}};
  EXPECT_EQ(chunks, expected);
  engine.check_empty();
}

}  // namespace
}  // namespace tandem
