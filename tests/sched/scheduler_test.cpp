// The laws of one step: order, budgets, grid, modes, admission, refusals, fork, failure.
#include "sched/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sched/engine_stand_in.h"

namespace tandem {
namespace {

using test::EngineStandIn;
using test::FakeMemoryOptions;
using testing::ElementsAre;
using testing::HasSubstr;

SchedulerOptions small_options() {
  SchedulerOptions options;
  options.token_budget = 64;
  options.max_running = 8;
  return options;
}

const FakeMemoryOptions kRoomy = {4096, 16, 1, INT64_MAX, false};

struct Chunk {
  int32_t id;
  int64_t begin;
  int64_t num_tokens;
  bool operator==(const Chunk&) const = default;
};

std::vector<Chunk> chunks_of(const SchedulerStep& step) {
  std::vector<Chunk> chunks;
  for (const ScheduledRows& r : step.rows) chunks.push_back({r.id.value, r.begin, r.num_tokens});
  return chunks;
}

TEST(Scheduler, APromptIsComputedInChunksThenDecodedRowByRow) {
  EngineStandIn engine(small_options(), kRoomy);
  ASSERT_TRUE(engine.add(1, 150, 3).is_ok());
  std::vector<Chunk> chunks;
  while (!engine.clients.empty()) {
    const SchedulerStep& step = engine.plan();
    ASSERT_EQ(step.rows.size(), 1U);
    chunks.push_back(chunks_of(step)[0]);
    engine.finish_step(0.001);
  }
  EXPECT_THAT(chunks,
              ElementsAre(Chunk{1, 0, 64}, Chunk{1, 64, 64}, Chunk{1, 128, 22}, Chunk{1, 150, 1}, Chunk{1, 151, 1}));
  engine.check_empty();
}

TEST(Scheduler, SeveralPromptsShareAStepWithinItsRows) {
  EngineStandIn engine(small_options(), kRoomy);
  ASSERT_TRUE(engine.add(1, 20, 9).is_ok());
  ASSERT_TRUE(engine.add(2, 25, 9).is_ok());
  ASSERT_TRUE(engine.add(3, 30, 9).is_ok());
  // 64 − 45 rows are left for the third: one grid step of them.
  EXPECT_THAT(chunks_of(engine.plan()), ElementsAre(Chunk{1, 0, 20}, Chunk{2, 0, 25}, Chunk{3, 0, 16}));
  EXPECT_THAT(engine.step_rows[2].is_last, false);
  engine.finish_step(0.001);
  EXPECT_THAT(chunks_of(engine.plan()), ElementsAre(Chunk{1, 20, 1}, Chunk{2, 25, 1}, Chunk{3, 16, 14}));
  engine.finish_step(0.001);
}

TEST(Scheduler, ARestOfOneRowIsNotLeftWhereItCanBeAvoided) {
  EngineStandIn engine(small_options(), kRoomy);
  ASSERT_TRUE(engine.add(1, 65, 1).is_ok());
  EXPECT_THAT(chunks_of(engine.plan()), ElementsAre(Chunk{1, 0, 48}));
  engine.finish_step(0.001);
  EXPECT_THAT(chunks_of(engine.plan()), ElementsAre(Chunk{1, 48, 17}));
  EXPECT_EQ(engine.step_rows[0].mode, StepMode::kPrefill);
  engine.finish_step(0.001);
  engine.check_empty();
}

TEST(Scheduler, APredictedTimeLimitsPrefillsBesideDecodesButNotToNothing) {
  SchedulerOptions options = small_options();
  options.token_budget = 512;
  for (const double step_seconds : {1e-9, 4.2e-3, 1.0}) {
    options.step_seconds = step_seconds;
    EngineStandIn engine(options, kRoomy);
    for (int32_t id = 1; id <= 20; ++id) {  // teaches the times
      ASSERT_TRUE(engine.add(id, 37 * id, 4).is_ok());
      ASSERT_TRUE(engine.run(1000));
    }
    ASSERT_TRUE(engine.add(30, 10, 2000).is_ok());
    ASSERT_TRUE(engine.step());
    ASSERT_TRUE(engine.add(31, 6000, 2).is_ok());
    int64_t position = 0;
    while (position < 6000) {
      const SchedulerStep& step = engine.plan();
      ASSERT_EQ(step.rows.size(), 2U);
      EXPECT_EQ(step.rows[0].id, SeqId(30)) << "decodes come first";
      const int64_t rows = step.rows[1].num_tokens;
      position += rows;
      if (step_seconds < 1e-6) {
        EXPECT_TRUE(rows == 16 || position == 6000) << rows;
      } else if (step_seconds < 1) {
        EXPECT_LE(test::true_seconds(step), step_seconds * 1.01);
        EXPECT_NEAR(step.predicted_seconds, test::true_seconds(step), 0.01 * step_seconds);
        // One grid step more would not have been in time: 16 rows of 0.1 ms, and what they see.
        EXPECT_TRUE(test::true_seconds(step) + 17 * (1e-4 + 1e-9 * 6000) > step_seconds || position == 6000) << rows;
      } else {
        EXPECT_TRUE(rows == 496 || rows == 511 || position == 6000) << rows;
      }
      engine.finish_step(test::true_seconds(step));
    }
  }
}

TEST(Scheduler, DecodesBeyondTheRowsOfAStepAreNotAdmitted) {
  SchedulerOptions options = small_options();
  options.max_running = 1000;  // 64 − 16 have a row each beside one grid step
  EngineStandIn engine(options, kRoomy);
  for (int32_t id = 1; id <= 80; ++id) ASSERT_TRUE(engine.add(id, 3, 200).is_ok());
  int64_t most = 0;
  for (int i = 0; i < 150; ++i) {
    ASSERT_TRUE(engine.step());
    most = std::max(most, engine.scheduler.counts().running);
  }
  EXPECT_EQ(most, 48);
  ASSERT_TRUE(engine.run(10000));
  engine.check_empty();
}

TEST(Scheduler, WhatCannotFitAloneIsRefusedWithNumbers) {
  EngineStandIn engine(small_options(), {8, 16, 2, INT64_MAX, false});
  EXPECT_EQ(engine.scheduler.max_sequence_tokens(), 96);  // 8 blocks less a state of 2, 16 tokens each
  const Status status = engine.add(1, 60, 37);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  for (const char* number : {"60 ", "37 ", "8 blocks", "96 "}) EXPECT_THAT(status.message(), HasSubstr(number));
  EXPECT_EQ(engine.add(2, 1, INT64_MAX).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(engine.add(3, std::vector<TokenId>{}, 5).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(engine.add(4, 60, 36).is_ok());
  ASSERT_TRUE(engine.run(1000));
  engine.check_empty();
}

TEST(Scheduler, AFullQueueRefuses) {
  SchedulerOptions options = small_options();
  options.max_waiting = 3;
  EngineStandIn engine(options, kRoomy);
  for (int32_t id = 1; id <= 3; ++id) ASSERT_TRUE(engine.add(id, 5, 5).is_ok());
  const Status status = engine.add(4, 5, 5);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("3 requests wait, at most 3"));
  ASSERT_TRUE(engine.step());  // they run
  EXPECT_TRUE(engine.add(4, 5, 5).is_ok());
  ASSERT_TRUE(engine.run(100));
  engine.check_empty();
}

TEST(Scheduler, AHitIsResumedFromAndIsADecodeWhenOneRowIsLeft) {
  EngineStandIn engine(small_options(), {64, 16, 1, INT64_MAX, true});
  ASSERT_TRUE(engine.add(1, engine.text(1, 49, 48), 1).is_ok());
  // Checkpoints lie where steps end: at 48 when the prompt ends there.
  ASSERT_TRUE(engine.add(2, engine.text(2, 48, 48), 1).is_ok());
  ASSERT_TRUE(engine.run(100));
  ASSERT_TRUE(engine.add(3, engine.text(3, 49, 48), 1).is_ok());
  const SchedulerStep& step = engine.plan();
  EXPECT_THAT(chunks_of(step), ElementsAre(Chunk{3, 48, 1}));
  EXPECT_EQ(step.rows[0].mode, StepMode::kDecode);
  EXPECT_THAT(step.admitted, ElementsAre(SeqId(3)));
  EXPECT_EQ(engine.scheduler.admitted_match(SeqId(3)).hit_tokens, 48);
  engine.finish_step(0.001);
  engine.check_empty();
}

TEST(Scheduler, AloneWithAHitThatDoesNotFitBesideItsCopyItStartsWithoutIt) {
  // A state is 3 blocks: on its hit of 48 tokens the second holds 3 pages, the checkpoint and a state of its own, and
  // wants a page more: 10 of 7 blocks. Without the hit it needs 7.
  EngineStandIn engine(small_options(), {7, 16, 3, INT64_MAX, true});
  ASSERT_TRUE(engine.add(1, engine.text(1, 48, 48), 1).is_ok());
  ASSERT_TRUE(engine.run(100));
  ASSERT_EQ(engine.memory.match(engine.text(2, 60, 48), CacheScope{}).hit_tokens, 0) << "no block is free for a state";
  // With the pool of 10 the checkpoint is kept, then others take 3 blocks.
  EngineStandIn roomy(small_options(), {10, 16, 3, INT64_MAX, true});
  ASSERT_TRUE(roomy.add(1, roomy.text(1, 48, 48), 1).is_ok());
  ASSERT_TRUE(roomy.run(100));
  ASSERT_EQ(roomy.memory.match(roomy.text(2, 60, 48), CacheScope{}).hit_tokens, 48);
  ASSERT_TRUE(roomy.memory.hold(1));
  ASSERT_TRUE(roomy.add(2, roomy.text(2, 60, 48), 4).is_ok());
  EXPECT_THAT(chunks_of(roomy.plan()), ElementsAre(Chunk{2, 0, 60}));
  EXPECT_EQ(roomy.scheduler.admitted_match(SeqId(2)).hit_tokens, 0);
  roomy.finish_step(0.001);
  ASSERT_TRUE(roomy.run(100));
  roomy.memory.give_back_held();
  roomy.check_empty();
}

TEST(Scheduler, ARefusedAdmissionIsTriedAgain) {
  EngineStandIn engine(small_options(), kRoomy);
  ASSERT_TRUE(engine.add(1, 5, 100).is_ok());
  ASSERT_TRUE(engine.step());
  engine.memory.refuse_admissions = 2;
  ASSERT_TRUE(engine.add(2, 5, 5).is_ok());
  int64_t steps = 0;
  while (engine.clients.contains(2) && steps < 100) {
    ASSERT_TRUE(engine.step());
    ++steps;
  }
  EXPECT_LT(steps, 3 * 16 + 10);
  ASSERT_TRUE(engine.run(1000));
  engine.check_empty();
}

TEST(Scheduler, AChunkTakesTheRowsThereIsRoomFor) {
  EngineStandIn engine(small_options(), {20, 16, 1, INT64_MAX, false});
  ASSERT_TRUE(engine.add(1, 200, 2).is_ok());
  ASSERT_TRUE(engine.step());
  ASSERT_TRUE(engine.memory.hold(engine.memory.blocks_available() - 3));
  EXPECT_THAT(chunks_of(engine.plan()), ElementsAre(Chunk{1, 64, 32})) << "half of 64, on the grid";
  engine.finish_step(0.001);
  EXPECT_THAT(chunks_of(engine.plan()), ElementsAre(Chunk{1, 96, 16}));
  engine.finish_step(0.001);
  EXPECT_FALSE(engine.step());
  engine.memory.give_back_held();
  EXPECT_THAT(chunks_of(engine.plan()), ElementsAre(Chunk{1, 112, 64}));
  engine.finish_step(0.001);
  ASSERT_TRUE(engine.run(100));
  engine.check_empty();
}

TEST(Scheduler, AFailedStepIsComputedAgainFromTheStart) {
  EngineStandIn engine(small_options(), kRoomy);
  ASSERT_TRUE(engine.add(1, 100, 5).is_ok());
  ASSERT_TRUE(engine.add(2, 10, 5).is_ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine.step());
  engine.plan();
  ASSERT_EQ(engine.step_rows.size(), 2U);
  engine.fail_step();
  EXPECT_EQ(engine.scheduler.counts().waiting, 2);
  EXPECT_EQ(engine.scheduler.num_computed_tokens(SeqId(1)), 0);
  EXPECT_EQ(engine.memory.num_sequences(), 0);
  ASSERT_TRUE(engine.run(100));
  engine.check_empty();
}

TEST(Scheduler, AForkGoesOnFromTheSamePlace) {
  for (const int64_t blocks : {4096, 7}) {  // in 7 blocks two sequences of 3 + 1 do not fit beside each other
    EngineStandIn engine(small_options(), {blocks, 16, 1, INT64_MAX, false});
    ASSERT_TRUE(engine.add(1, 40, 5).is_ok());
    ASSERT_TRUE(engine.step());
    ASSERT_TRUE(blocks != 7 || engine.memory.hold(3));
    const bool is_forked = engine.scheduler.fork(SeqId(1), SeqId(2));
    EXPECT_EQ(is_forked, blocks != 7);
    engine.clients[2] = engine.clients[1];
    EXPECT_EQ(engine.scheduler.tokens(SeqId(2)).size(), 41U);
    EXPECT_EQ(engine.scheduler.num_computed_tokens(SeqId(2)), is_forked ? 40 : 0);
    engine.memory.give_back_held();
    ASSERT_TRUE(engine.run(100));
    EXPECT_EQ(engine.num_finished, 2);
    engine.check_empty();
  }
}

TEST(Scheduler, AForkBeforeTheFirstTokenIsKnownWaitsForTheCallersToken) {
  EngineStandIn engine(small_options(), kRoomy);
  ASSERT_TRUE(engine.scheduler.add({SeqId(1), engine.text(1, 20), CacheScope{}, 0, 4, 0, true}).is_ok());
  const SchedulerStep& step = engine.scheduler.plan(0);
  ASSERT_TRUE(step.rows.size() == 1 && step.rows[0].is_last);
  engine.memory.commit(SeqId(1), engine.scheduler.tokens(SeqId(1)));
  engine.scheduler.step_done(0.001);
  ASSERT_TRUE(engine.scheduler.fork(SeqId(1), SeqId(2)));
  EXPECT_FALSE(engine.scheduler.has_work());
  engine.scheduler.append_token(SeqId(1), TokenId(7));
  engine.scheduler.append_token(SeqId(2), TokenId(8));
  EXPECT_THAT(chunks_of(engine.scheduler.plan(0)), ElementsAre(Chunk{1, 20, 1}, Chunk{2, 20, 1}));
  EXPECT_EQ(engine.scheduler.tokens(SeqId(2)).back(), TokenId(8));
  engine.scheduler.step_failed();
  engine.scheduler.remove(SeqId(1));
  engine.scheduler.remove(SeqId(2));
  engine.check_empty();
}

}  // namespace
}  // namespace tandem
