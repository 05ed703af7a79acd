// A warm decode step inside a hash unit and a page allocates nothing in the cache.
#include <gtest/gtest.h>

#include <array>

#include "cache/fake_model.h"
#include "support/heap_calls.h"

namespace tandem {
namespace {

TEST(HybridCacheAllocation, AWarmDecodeStepAllocatesNothing) {
  for (const char* kinds : {"kkkm", "kk", "mm"}) {
    const CacheLayout layout = test::fake_layout(kinds);
    const HybridCacheOptions options{
        .hash_unit = 64, .budget_bytes = int64_t{4} << 20, .checkpoint_interval = 0, .identity = "warm"};
    auto cache = HybridCache::create(layout, options).value();
    const test::FakeModel model(layout);
    std::vector<TokenId> tokens(300, TokenId(3));
    const std::vector<TokenId> prompt(tokens.begin(), tokens.begin() + 70);
    ASSERT_TRUE(cache->admit(SeqId(1), prompt, {}, 70));
    ASSERT_TRUE(model.run_to_end(*cache, SeqId(1), prompt));
    int64_t counted = 0;
    for (int64_t at = 70; at < 300; ++at) {
      const std::array<TokenId, 1> next = {tokens[static_cast<size_t>(at)]};
      const bool crosses = (at + 1) % 64 == 0 || at % 64 == 0 || at == 70;
      test::count_heap_calls(!crosses);
      const bool has_room = cache->prepare_step(SeqId(1), 1);
      const SequenceCacheView view = cache->view(SeqId(1));
      const auto captures = cache->captures(SeqId(1));
      test::count_heap_calls(false);
      ASSERT_TRUE(has_room);
      model.run(view, captures, tokens, at, 1);
      test::count_heap_calls(!crosses);
      const Status status = cache->commit_step(SeqId(1), next);
      test::count_heap_calls(false);
      ASSERT_TRUE(status.is_ok()) << status.message();
      counted += crosses ? 0 : 1;
    }
    EXPECT_GT(counted, 200);
    EXPECT_EQ(test::take_heap_calls(), 0) << kinds;
  }
}

}  // namespace
}  // namespace tandem
