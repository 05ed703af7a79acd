// A loaded model within a memory budget: the tokens of the resident model, alone and served with others.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "cost/step_scratch.h"
#include "engine/generate.h"
#include "engine/memory_info.h"
#include "engine/routing_trace.h"
#include "engine/serving_support.h"
#include "model/random_model.h"

namespace tandem {
namespace {

constexpr int64_t kMB = 1'000'000;

// 33 MB of experts, little else.
test::SmallShape wide_shape() {
  test::SmallShape shape;
  shape.experts = 256;
  shape.topk = 8;
  shape.latent = 512;
  return shape;
}

class StreamingTest : public testing::Test {
 protected:
  // The model within the least budget that has room for it and a few tokens' experts: some are met again.
  static std::unique_ptr<LoadedModel> load_streamed(const std::string& dir) {
    LoadOptions options;
    options.memory.step_rows = 96;
    options.memory.step_sequences = 16;
    options.memory.cache_bytes = 9 * kMB;
    for (int64_t beside = 0; beside < 200; beside += 2) {
      options.memory.ram_bytes = resident_bytes() + beside * kMB;
      Result<std::unique_ptr<LoadedModel>> model = LoadedModel::load(dir, options);
      if (!model.is_ok()) {
        EXPECT_EQ(model.status().code(), StatusCode::kResourceExhausted) << model.status().message();
        continue;
      }
      if (model.value()->experts() != nullptr && model.value()->experts()->num_slots() < 64) continue;
      EXPECT_NE(model.value()->experts(), nullptr);
      return std::move(model).value();
    }
    return nullptr;
  }

  const test::RandomModel random_{wide_shape(), 21};
};

TEST_F(StreamingTest, ServedTogetherWithinABudgetEveryRequestGetsTheTokensItGetsAloneFromTheResidentModel) {
  const std::unique_ptr<LoadedModel> resident = test::load_model(random_.dir());
  ASSERT_EQ(resident->experts(), nullptr);
  std::vector<EngineRequest> requests;
  std::vector<test::Tokens> expected;
  for (uint64_t i = 0; i < 5; ++i) {
    requests.push_back(
        test::greedy_request(cat("r", i), test::random_prompt(static_cast<int64_t>(5 + 40 * i), i, 300), 12));
    expected.push_back(test::alone(*resident, requests.back()));
  }
  const std::unique_ptr<LoadedModel> streamed = load_streamed(random_.dir());
  ASSERT_NE(streamed, nullptr);
  EXPECT_LT(streamed->experts()->num_slots(), streamed->experts()->num_experts());
  EXPECT_EQ(streamed->streamed()->promised_cache_bytes(), 9 * kMB);
#ifdef TANDEM_SANITIZED
  // What a sanitizer sets aside grows like nothing that was counted; the budget is not held against it.
  streamed->experts()->set_step_hook(nullptr);
#endif
  test::Engine engine(*streamed);
  for (const EngineRequest& request : requests) engine.submit(request);
  engine.run();
  for (size_t i = 0; i < requests.size(); ++i) {
    const test::Reply reply = engine.reply(requests[i].id);
    EXPECT_TRUE(reply.error.is_ok()) << reply.error.message();
    EXPECT_EQ(reply.tokens, expected[i]) << i;
  }
  engine.expect_no_leak();
  const EngineMetrics metrics = engine->metrics();
  EXPECT_EQ(metrics.expert_slots, streamed->experts()->num_slots());
  EXPECT_GT(metrics.expert_misses, 0);
  EXPECT_GT(metrics.expert_hits, 0);
  EXPECT_GT(metrics.expert_bytes_read, 0);
}

// The budget sets aside what a step of a streamed model takes, its look ahead included.
TEST_F(StreamingTest, AStepTakesNoMoreScratchThanTheBudgetSetsAside) {
  const std::unique_ptr<LoadedModel> streamed = load_streamed(random_.dir());
  ASSERT_NE(streamed, nullptr);
#ifdef TANDEM_SANITIZED
  streamed->experts()->set_step_hook(nullptr);
#endif
  const ModelCost cost{.config = streamed->config(),
                       .weights = bound_weight_sizes(streamed->weights()),
                       .cache = streamed->cache_layout(),
                       .path = AttentionPath::kFast};
  StepShape shape;
  shape.prompt_rows = 96;
  shape.prompts = 1;
  shape.context = 96;
  shape.threads = streamed->exec().pool.num_threads();
  shape.kernels = streamed->exec().kernels.backend;
  shape.streams_experts = true;
  Generator generator(*streamed);
  GenerateRequest request;
  request.prompt = test::random_prompt(96, 1, 300);
  request.prefill_chunk = 96;
  request.max_tokens = 1;
  ASSERT_TRUE(generator.run(request, [](TokenId) { return true; }).is_ok());
  const auto taken = static_cast<int64_t>(streamed->exec().arena.peak_bytes());
  EXPECT_GE(step_scratch(cost, shape).peak_bytes, taken);
  EXPECT_LE(static_cast<double>(step_scratch(cost, shape).peak_bytes), 1.15 * static_cast<double>(taken));
  EXPECT_GE(most_scratch_bytes(cost, {.rows = 96, .sequences = 16, .logit_rows = 16}, shape), taken);
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST_F(StreamingTest, ATraceHasALineForEachDecodedTokenWithTheExpertsOfEachLayer) {
  const std::unique_ptr<LoadedModel> model = test::load_model(random_.dir());
  const test::TempFolder folder;
  Result<RoutingTrace> trace = RoutingTrace::create(folder.path("t.jsonl"));
  ASSERT_TRUE(trace.is_ok());
  Generator generator(*model);
  generator.set_observer(&trace.value());
  GenerateRequest request;
  request.prompt = test::random_prompt(9, 1, 300);
  request.sampling.temperature = 0;
  request.max_tokens = 4;
  // The prompt's rows, then a row for each token but the last, which is not fed.
  trace.value().record(true);
  ASSERT_TRUE(generator.run(request, [](TokenId) { return true; }).is_ok());
  ASSERT_TRUE(trace.value().finish().is_ok());
  EXPECT_EQ(trace.value().num_tokens(), 12);
  const std::vector<std::string> lines = lines_of(folder.path("t.jsonl"));
  ASSERT_EQ(lines.size(), 12u);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_TRUE(lines[i].starts_with(cat("{\"tok\": ", i, ", \"layers\": [["))) << lines[i];
    EXPECT_TRUE(lines[i].ends_with("]]}")) << lines[i];
    // 5 layers of 8 ids.
    EXPECT_EQ(std::count(lines[i].begin(), lines[i].end(), '['), 6);
    EXPECT_EQ(std::count(lines[i].begin(), lines[i].end(), ','), 1 + 5 * 8 - 1);
  }
  EXPECT_FALSE(RoutingTrace::create(folder.path("no/such/folder")).is_ok());
}

}  // namespace
}  // namespace tandem
