// Generator: what it refuses, what ends a generation, what it takes from its cache, and how it recovers.
#include "engine/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/cat.h"
#include "engine/poisoned_model.h"
#include "support/golden.h"

namespace tandem {
namespace {

using test::Golden;
using ::testing::HasSubstr;
using Ids = std::vector<TokenId>;

Ids ids(const std::vector<int32_t>& values) {
  Ids out;
  for (const int32_t value : values) out.emplace_back(value);
  return out;
}

Ids head(const Ids& tokens, size_t count) { return {tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(count)}; }

Ids joined(Ids first, const Ids& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::unique_ptr<LoadedModel> load(const std::string& dir, LoadOptions options = {}) {
  auto model = LoadedModel::load(dir, options);
  TANDEM_CHECK(model.is_ok(), model.status().message());
  return std::move(model).value();
}

LoadOptions with_context(int64_t tokens) {
  LoadOptions options;
  options.context = tokens;
  return options;
}

GenerateRequest greedy(Ids prompt, int64_t max_tokens) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.max_tokens = max_tokens;
  return request;
}

Result<GenerateResult> run(Generator& generator, const GenerateRequest& request) {
  return generator.run(request, [](TokenId) { return true; });
}

class GenerateTest : public ::testing::TestWithParam<const char*> {
 protected:
  GenerateTest()
      : golden_(Golden::load(cat("golden/", GetParam(), "/expected.safetensors"))),
        prompt_(ids(golden_["p37.ids"].i32)),
        greedy_(ids(golden_["p37.greedy"].i32)) {}

  std::string dir() const { return test::data_path(cat("golden/", GetParam())); }

  Golden golden_;
  Ids prompt_;
  Ids greedy_;  // what follows it
};

INSTANTIATE_TEST_SUITE_P(Models, GenerateTest, ::testing::Values("k3-tiny", "kimi-linear-tiny"),
                         [](const auto& test) { return std::string(test.param) == "k3-tiny" ? "K3" : "KimiLinear"; });

TEST_P(GenerateTest, RefusesWhatItCannotRun) {
  const auto model = load(dir(), with_context(8));
  const auto vocab = static_cast<int32_t>(model->config().vocab_size);
  Generator generator(*model);
  const auto refused = [&](const GenerateRequest& request, const std::string& words) {
    bool called = false;
    const auto result = generator.run(request, [&](TokenId) { return called = true; });
    ASSERT_FALSE(result.is_ok()) << words;
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(result.status().message(), HasSubstr(words));
    EXPECT_FALSE(called);
  };
  refused(greedy({}, 4), "the prompt is empty: expected at least one token");
  refused(greedy(head(prompt_, 8), 4), "the prompt has 8 tokens and the context holds 8: expected at most 7");
  refused(greedy(ids({1, vocab}), 4), cat("prompt token 1 is ", vocab, ", expected an id in 0..", vocab - 1));
  refused(greedy(ids({-1}), 4), "prompt token 0 is -1");
  refused(greedy(ids({1}), 0), "max tokens is 0, expected at least 1");
  GenerateRequest request = greedy(ids({1}), 4);
  request.prefill_chunk = 0;
  refused(request, "prefill chunk is 0 tokens, expected at least 1");
  request = greedy(ids({1}), 4);
  request.sampling.temperature = -1;
  refused(request, "temperature: expected a number in [0, 2], found -1");
  // A refusal leaves the generator as it was.
  EXPECT_TRUE(run(generator, greedy(head(prompt_, 7), 1)).is_ok());
}

TEST_P(GenerateTest, TheContextEndsAGeneration) {
  const auto model = load(dir(), with_context(static_cast<int64_t>(prompt_.size()) + 5));
  Generator generator(*model);
  const auto result = run(generator, greedy(prompt_, 100));
  ASSERT_TRUE(result.is_ok()) << result.status().message();
  EXPECT_EQ(result.value().tokens, head(greedy_, 5));  // prompt and reply fill the context exactly
  EXPECT_EQ(result.value().finish_reason, FinishReason::kLength);
}

TEST_P(GenerateTest, AStopTokenEndsAGenerationAndIsLeftOut) {
  const auto model = load(dir());
  Generator generator(*model);
  GenerateRequest request = greedy(prompt_, 12);
  request.stop_tokens = {greedy_[6]};
  const auto first = std::find(greedy_.begin(), greedy_.end(), greedy_[6]) - greedy_.begin();
  Ids heard;
  const auto stopped = generator.run(request, [&](TokenId id) {
    heard.push_back(id);
    return true;
  });
  ASSERT_TRUE(stopped.is_ok()) << stopped.status().message();
  EXPECT_EQ(stopped.value().tokens, head(greedy_, static_cast<size_t>(first)));
  EXPECT_EQ(stopped.value().finish_reason, FinishReason::kStop);
  EXPECT_EQ(heard, stopped.value().tokens);
  request.ignore_eos = true;
  const auto ignored = run(generator, request);
  ASSERT_TRUE(ignored.is_ok()) << ignored.status().message();
  EXPECT_EQ(ignored.value().tokens, head(greedy_, 12));
  EXPECT_EQ(ignored.value().finish_reason, FinishReason::kLength);
}

TEST_P(GenerateTest, TheCallerEndsAGeneration) {
  const auto model = load(dir());
  Generator generator(*model);
  int count = 0;
  const auto result = generator.run(greedy(prompt_, 12), [&](TokenId) { return ++count < 3; });
  ASSERT_TRUE(result.is_ok()) << result.status().message();
  EXPECT_EQ(result.value().tokens, head(greedy_, 3));
  EXPECT_EQ(result.value().finish_reason, FinishReason::kStop);
}

// A second turn: the first one's prompt and reply, and something new. The last token of the reply was never run.
TEST_P(GenerateTest, ContinuingFromTheCacheEqualsAColdStart) {
  const auto model = load(dir());
  Generator warm(*model), cold(*model);
  const auto turn = run(warm, greedy(prompt_, 9));
  ASSERT_TRUE(turn.is_ok()) << turn.status().message();
  EXPECT_EQ(turn.value().cached_tokens, 0);
  const Ids next = joined(joined(prompt_, turn.value().tokens), ids({5, 6, 7}));
  const auto continued = run(warm, greedy(next, 16));
  const auto fresh = run(cold, greedy(next, 16));
  ASSERT_TRUE(continued.is_ok() && fresh.is_ok());
  EXPECT_EQ(continued.value().cached_tokens, static_cast<int64_t>(prompt_.size()) + 8);
  EXPECT_EQ(fresh.value().cached_tokens, 0);
  EXPECT_EQ(continued.value().prompt_tokens, static_cast<int64_t>(next.size()));
  EXPECT_EQ(continued.value().tokens, fresh.value().tokens);
}

TEST_P(GenerateTest, ARequestMayRefuseTheCache) {
  const auto model = load(dir());
  Generator generator(*model);
  const auto first = run(generator, greedy(prompt_, 8));
  ASSERT_TRUE(first.is_ok());
  GenerateRequest next = greedy(joined(joined(prompt_, first.value().tokens), ids({7})), 16);
  next.reuse_cache = false;
  const auto again = run(generator, next);
  Generator cold(*model);
  const auto fresh = run(cold, next);
  ASSERT_TRUE(again.is_ok() && fresh.is_ok());
  EXPECT_EQ(again.value().cached_tokens, 0);
  EXPECT_EQ(again.value().tokens, fresh.value().tokens);
}

TEST_P(GenerateTest, AnotherPromptStartsFromAnEmptyCache) {
  const auto model = load(dir());
  Generator generator(*model);
  ASSERT_TRUE(run(generator, greedy(joined(ids({3}), prompt_), 4)).is_ok());
  for (int repeat = 0; repeat < 2; ++repeat) {  // the second time the prompt is a part of what the cache holds
    const auto result = run(generator, greedy(prompt_, 8));
    ASSERT_TRUE(result.is_ok()) << result.status().message();
    EXPECT_EQ(result.value().cached_tokens, 0);
    EXPECT_EQ(result.value().tokens, head(greedy_, 8));
  }
}

TEST_P(GenerateTest, OneSeedOneReply) {
  const auto model = load(dir());
  Generator generator(*model);
  GenerateRequest request = greedy(prompt_, 24);
  request.sampling.temperature = 1;
  const auto with_seed = [&](uint64_t seed) {
    request.sampling.seed = seed;
    return run(generator, request).value().tokens;
  };
  const Ids once = with_seed(11);
  EXPECT_EQ(once, with_seed(11));
  EXPECT_NE(once, with_seed(12));
}

// A token whose embedding is NaN fails its own generation, wherever it comes, and nothing of it stays.
TEST_P(GenerateTest, NonFiniteLogitsFailOneRunOnly) {
  int32_t token = 0;
  const auto used = [&] {
    const Ids all = joined(prompt_, greedy_);
    return std::find(all.begin(), all.end(), TokenId(token)) != all.end();
  };
  while (used()) ++token;
  const test::PoisonedModel poisoned(GetParam(), token);
  const auto model = load(poisoned.dir());
  Generator generator(*model);
  const auto turn = run(generator, greedy(prompt_, 3));
  ASSERT_TRUE(turn.is_ok()) << turn.status().message();
  const Ids bad_prompts[] = {ids({token}), joined(prompt_, ids({token})),
                             joined(joined(prompt_, turn.value().tokens), ids({token}))};
  for (const Ids& bad : bad_prompts) {
    bool called = false;
    const auto failed = generator.run(greedy(bad, 4), [&](TokenId) { return called = true; });
    ASSERT_FALSE(failed.is_ok());
    EXPECT_EQ(failed.status().code(), StatusCode::kNonFinite) << failed.status().message();
    EXPECT_FALSE(called);
    const auto next = run(generator, greedy(prompt_, 8));
    ASSERT_TRUE(next.is_ok()) << next.status().message();
    EXPECT_EQ(next.value().tokens, head(greedy_, 8));
  }
}

}  // namespace
}  // namespace tandem
