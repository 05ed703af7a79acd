#include <gtest/gtest.h>

#include <array>

#include "stream/expert_policy.h"

namespace tandem {
namespace {

TEST(LruPolicy, TheLeastRecentlyNeededLeavesUnlessItIsPinned) {
  const std::unique_ptr<ExpertPolicy> policy = make_lru_policy(2, 4);
  const auto nobody = [](ExpertKey) { return false; };
  EXPECT_FALSE(policy->victim({0, 0}, false, nobody).has_value());
  for (const ExpertKey key : {ExpertKey{0, 0}, ExpertKey{0, 3}, ExpertKey{1, 2}}) policy->on_insert(key);
  policy->on_step(0, std::array<int32_t, 2>{0, 1});  // 1 has no memory: nothing to move
  EXPECT_EQ(policy->victim({1, 1}, false, nobody), (ExpertKey{0, 3}));
  EXPECT_EQ(policy->victim({1, 1}, false, [](ExpertKey key) { return key == ExpertKey{0, 3}; }), (ExpertKey{1, 2}));
  policy->on_remove({0, 3});
  EXPECT_EQ(policy->victim({1, 1}, true, nobody), (ExpertKey{1, 2}));
  policy->on_step(1, std::array<int32_t, 1>{2});
  EXPECT_EQ(policy->victim({1, 1}, false, nobody), (ExpertKey{0, 0}));
  EXPECT_FALSE(policy->victim({1, 1}, false, [](ExpertKey) { return true; }).has_value());
}

}  // namespace
}  // namespace tandem
