// How a budget is divided, and what is refused.
#include "engine/memory_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/loaded_model.h"
#include "engine/memory_info.h"
#include "model/random_model.h"

namespace tandem {
namespace {

using testing::HasSubstr;

constexpr int64_t kMB = 1'000'000;

MemoryNeeds needs() {
  MemoryNeeds made;
  made.process = 30 * kMB;
  made.trunk = 400 * kMB;
  made.trunk_streamed = 100 * kMB;
  made.experts = 2000 * kMB;
  made.scratch = 50 * kMB;
  made.caches = 20 * kMB;
  made.slot = 2 * kMB;
  made.num_experts = 1000;
  made.least_slots = 16;
  return made;
}

TEST(DecideMemory, WhatFitsIsResidentAndWhatDoesNotIsStreamedWithinTheRest) {
  EXPECT_FALSE(decide_memory(needs(), 2500 * kMB, 0).value().streamed);
  MemoryNeeds looked_up = needs();
  looked_up.embedding = 7 * kMB;
  EXPECT_TRUE(decide_memory(looked_up, 2506 * kMB, 0).value().streamed);
  EXPECT_FALSE(decide_memory(looked_up, 2507 * kMB, 0).value().streamed);
  const MemoryDecision tight = decide_memory(needs(), 2499 * kMB, 1).value();
  EXPECT_TRUE(tight.streamed);
  EXPECT_EQ(tight.num_slots, 999);
  EXPECT_EQ(decide_memory(needs(), 1000 * kMB, 0).value().num_slots, 250);
  EXPECT_EQ(decide_memory(needs(), 532 * kMB, 0).value().num_slots, 16);
}

TEST(DecideMemory, ATrunkThatLeavesNoRoomIsReadLayerByLayer) {
  const MemoryDecision decision = decide_memory(needs(), 531 * kMB, 0).value();
  EXPECT_TRUE(decision.trunk_streamed);
  EXPECT_EQ(decision.num_slots, 165);
  EXPECT_FALSE(decide_memory(needs(), 532 * kMB, 0).value().trunk_streamed);
  MemoryNeeds dense = needs();
  dense.experts = dense.slot = dense.num_experts = dense.least_slots = 0;
  EXPECT_TRUE(decide_memory(dense, 499 * kMB, 0).value().trunk_streamed);
  EXPECT_FALSE(decide_memory(dense, 500 * kMB, 0).value().streamed);
}

TEST(DecideMemory, WithoutABudgetTheMemoryThatIsThereDecides) {
  EXPECT_FALSE(decide_memory(needs(), std::nullopt, 2500 * kMB).value().streamed);
  EXPECT_EQ(decide_memory(needs(), std::nullopt, 1000 * kMB).value().num_slots, 250);
  EXPECT_FALSE(decide_memory(needs(), std::nullopt, 0).value().streamed);
}

TEST(DecideMemory, ABudgetBelowTheLeastIsRefusedByPart) {
  EXPECT_EQ(decide_memory(needs(), 232 * kMB, 0).value().num_slots, 16);
  const Status status = decide_memory(needs(), 231 * kMB, 0).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            "--ram is 231.0 MB, and at least 232.0 MB are needed: 100.0 MB for the trunk, read layer by layer, 32.0 MB "
            "for the 16 experts of one token in one layer, 50.0 MB for a step's scratch, 20.0 MB for caches, 30.0 MB "
            "for the process");
  EXPECT_THAT(decide_memory(needs(), std::nullopt, 231 * kMB).status().message(),
              HasSubstr("the memory available here is 231.0 MB"));
}

TEST(DecideMemory, TheDecisionIsSaidInOneLine) {
  EXPECT_EQ(describe(decide_memory(needs(), 1000 * kMB, 0).value(), needs()),
            "within 1000.0 MB: trunk resident (400.0 MB), routed experts streamed from disk, 250 of 1000 in memory "
            "(25.0%, 500.0 MB); scratch 50.0 MB, caches 20.0 MB, process 30.0 MB");
  EXPECT_EQ(describe(decide_memory(needs(), 300 * kMB, 0).value(), needs()),
            "within 300.0 MB: trunk streamed from disk layer by layer (100.0 MB stay), routed experts streamed from "
            "disk, 50 of 1000 in memory (5.0%, 100.0 MB); scratch 50.0 MB, caches 20.0 MB, process 30.0 MB");
  EXPECT_EQ(describe({}, needs()), "all weights resident: 2400.0 MB");
}

TEST(LoadedModelWithABudget, StreamsAndRefuses) {
  const test::RandomModel random({}, 3);
  LoadOptions options;
  options.memory.ram_bytes = 10 * kMB;  // below what any process takes
  const Status refused = LoadedModel::load(random.dir(), options).status();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("--ram is 10.0 MB"));
  options.memory.ram_bytes = int64_t{1} << 40;
  Result<std::unique_ptr<LoadedModel>> fits = LoadedModel::load(random.dir(), options);
  ASSERT_TRUE(fits.is_ok()) << fits.status().message();
  EXPECT_EQ(fits.value()->streamed(), nullptr);
}

TEST(ResidentBytes, GrowWithWhatIsWritten) {
  const int64_t before = resident_bytes();
  ASSERT_GT(before, 0);
  const std::vector<char> written(64 << 20, 1);
  EXPECT_GE(resident_bytes() - before, 60 << 20);
  EXPECT_EQ(written.back(), 1);
  // The system counts by pages a processor has not told it of yet: the two may differ by some.
  EXPECT_GE(peak_resident_bytes() + (1 << 20), resident_bytes());
}

}  // namespace
}  // namespace tandem
