// A warm decode step allocates nothing: every operator new of the process is counted while the model runs.
#include <gtest/gtest.h>

#include <array>

#include "model/random_model.h"
#include "support/heap_calls.h"

namespace tandem {
namespace {

TEST(Allocation, AWarmDecodeStepAllocatesNothing) {
  test::for_each_backend([](test::BackendFixture& backend) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      const test::RandomModel model(test::random_shape(seed), seed);
      SequenceCache cache = model.new_cache();
      ASSERT_TRUE(cache.reserve(130).is_ok());
      StepPlan plan;
      plan.tokens.resize(1);
      plan.sequences.resize(1);
      for (int64_t position = 0; position < 130; ++position) {
        plan.tokens[0] = TokenId(static_cast<int32_t>(position % model.config().vocab_size));
        plan.sequences[0].cache = 0;
        plan.sequences[0].num_tokens = 1;
        plan.sequences[0].num_computed_tokens = position;
        plan.sequences[0].mode = StepMode::kDecode;
        const std::array<SequenceCacheView, 1> views = {cache.view()};
        test::count_heap_calls(position >= 2);
        const auto logits = model.model().forward(backend.ctx(), plan, views);
        test::count_heap_calls(false);
        ASSERT_TRUE(logits.is_ok()) << logits.status().message();
      }
      EXPECT_EQ(test::take_heap_calls(), 0) << "seed " << seed;
    }
  });
}

}  // namespace
}  // namespace tandem
