// A warm decode step of the serving engine allocates nothing: every operator new of the process is counted while the
// engine plans, runs, samples and commits. Delivery makes the outputs that the sinks own, and is not counted.
#include <gtest/gtest.h>

#include "engine/serving_support.h"
#include "support/heap_calls.h"

namespace tandem {
namespace {

TEST(ServingAllocation, AWarmDecodeStepAllocatesNothing) {
  const auto model = test::load_model(test::tiny_dir());
  ServingOptions options = test::small_options();
  options.verify_rate = 1;
  test::Engine engine(*model, options);
  // 16 sequences of every kind of sampling, 66 tokens long and so at the begin of a unit and of a page's half.
  for (int64_t i = 0; i < 16; ++i) {
    EngineRequest request = test::seeded_request(cat("r", i), test::random_prompt(66, i), 200, 9);
    request.sampling.top_k = i % 2 == 0 ? 20 : 0;
    request.sampling.top_p = i % 3 == 0 ? 0.9 : 1.0;
    request.sampling.frequency_penalty = i % 4 == 0 ? 0.5 : 0.0;
    request.min_tokens = 100;
    request.stop_tokens = {TokenId(371)};
    engine.submit(request);
  }
  while (engine.reply("r15").tokens.size() < 4) engine->step();
  const int64_t generated = engine->metrics().generated_tokens;
  for (int i = 0; i < 20; ++i) {
    test::count_heap_calls(true);
    const bool has_computed = engine->compute_step();
    test::count_heap_calls(false);
    ASSERT_TRUE(has_computed);
    engine->deliver();
  }
  EXPECT_EQ(engine->metrics().generated_tokens, generated + 20 * 16);
  EXPECT_EQ(test::take_heap_calls(), 0);
}

}  // namespace
}  // namespace tandem
