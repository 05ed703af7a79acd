// score: what its input file may be, its perplexity against the logits it writes, and its refusals.
#include "engine/score.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/cat.h"
#include "engine/poisoned_model.h"
#include "support/golden.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<TokenId> ids(const std::vector<int32_t>& values) {
  std::vector<TokenId> out;
  for (const int32_t value : values) out.emplace_back(value);
  return out;
}

std::unique_ptr<LoadedModel> load(const std::string& dir, LoadOptions options = {}) {
  auto model = LoadedModel::load(dir, options);
  TANDEM_CHECK(model.is_ok(), model.status().message());
  return std::move(model).value();
}

std::unique_ptr<LoadedModel> load_golden(LoadOptions options = {}) {
  return load(test::data_path("golden/k3-tiny"), options);
}

LoadOptions with_context(int64_t tokens) {
  LoadOptions options;
  options.context = tokens;
  return options;
}

Result<ScoreResult> run(LoadedModel& model, const std::vector<ScorePrompt>& prompts, const ScoreOptions& options = {}) {
  return score(model, prompts, options, [](int64_t, int64_t) {});
}

TEST(ScoreInput, ReadsPromptsInOrder) {
  const auto prompts =
      parse_score_input(R"({"prompts":[{"id":"b","tokens":[1,2,3]},{"id":"a","tokens":[0]}],"note":1})", "in.json");
  ASSERT_TRUE(prompts.is_ok()) << prompts.status().message();
  ASSERT_EQ(prompts.value().size(), 2u);
  EXPECT_EQ(prompts.value()[0].id, "b");
  EXPECT_EQ(prompts.value()[0].tokens, ids({1, 2, 3}));
  EXPECT_EQ(prompts.value()[1].id, "a");
  EXPECT_EQ(prompts.value()[1].tokens, ids({0}));
}

TEST(ScoreInput, Refusals) {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {"", "in.json: not valid JSON"},
      {R"({"prompts":[)", "in.json: not valid JSON"},
      {"[]", "at least one prompt"},
      {"{}", "at least one prompt"},
      {R"({"prompts":{}})", "at least one prompt"},
      {R"({"prompts":[]})", "at least one prompt"},
      {R"({"prompts":[7]})", "prompts[0]: expected an object, found number"},
      {R"({"prompts":[{"tokens":[1]}]})", "prompts[0].id: expected a non-empty string"},
      {R"({"prompts":[{"id":"","tokens":[1]}]})", "prompts[0].id: expected a non-empty string"},
      {R"({"prompts":[{"id":3,"tokens":[1]}]})", "prompts[0].id: expected a non-empty string"},
      {R"({"prompts":[{"id":"a","tokens":[1]},{"id":"a","tokens":[2]}]})", "prompts[1].id: \"a\" is used twice"},
      {R"({"prompts":[{"id":"a"}]})", "prompts[0].tokens: expected a non-empty list of token ids"},
      {R"({"prompts":[{"id":"a","tokens":[]}]})", "prompts[0].tokens: expected a non-empty list of token ids"},
      {R"({"prompts":[{"id":"a","tokens":"1,2"}]})", "prompts[0].tokens: expected a non-empty list of token ids"},
      {R"({"prompts":[{"id":"a","tokens":[1,-1]}]})", "prompts[0].tokens[1]: expected a token id, found -1"},
      {R"({"prompts":[{"id":"a","tokens":[1.5]}]})", "prompts[0].tokens[0]: expected a token id, found 1.5"},
      {R"({"prompts":[{"id":"a","tokens":["x"]}]})", "prompts[0].tokens[0]: expected a token id, found \"x\""},
      {R"({"prompts":[{"id":"a","tokens":[2147483648]}]})",
       "prompts[0].tokens[0]: expected a token id, found 2147483648"},
      {R"({"prompts":[{"id":"a","tokens":[18446744073709551615]}]})", "found 18446744073709551615"},
  };
  for (const auto& test_case : cases) {
    SCOPED_TRACE(test_case.text);
    const auto prompts = parse_score_input(test_case.text, "in.json");
    ASSERT_FALSE(prompts.is_ok());
    EXPECT_EQ(prompts.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(prompts.status().message(), HasSubstr("in.json"));
    EXPECT_THAT(prompts.status().message(), HasSubstr(test_case.message));
  }
}

TEST(ScoreInput, EveryFaultInOneMessage) {
  const auto prompts = parse_score_input(
      R"({"prompts":[{"id":"","tokens":[1]},{"id":"a","tokens":[]},{"id":"ok","tokens":[1]},5]})", "f");
  ASSERT_FALSE(prompts.is_ok());
  for (const char* part : {"prompts[0].id", "prompts[1].tokens", "prompts[3]: expected an object"}) {
    EXPECT_THAT(prompts.status().message(), HasSubstr(part));
  }
  EXPECT_THAT(prompts.status().message(), Not(HasSubstr("prompts[2]")));
}

// −Σ log softmax(logits[t])[token t+1] in double, straight from the tensor that score returns.
double loss_of(const ScoreTensor& logits, const std::vector<TokenId>& tokens) {
  const auto& values = std::get<std::vector<float>>(logits.values);
  const auto vocab = static_cast<size_t>(logits.shape[1]);
  double loss = 0;
  for (size_t t = 0; t + 1 < tokens.size(); ++t) {
    double sum = 0;
    for (size_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(values[t * vocab + v]));
    loss += std::log(sum) - values[t * vocab + static_cast<size_t>(tokens[t + 1].value)];
  }
  return loss;
}

TEST(Score, PerplexityIsThatOfTheLogits) {
  const auto model = load_golden();
  const std::vector<ScorePrompt> prompts = {{"a", ids({1, 2, 3, 4, 5})}, {"b", ids({9, 9})}, {"c", ids({7})}};
  for (const bool batch : {false, true}) {
    const auto result = run(*model, prompts, {.batch = batch});
    ASSERT_TRUE(result.is_ok()) << result.status().message();
    ASSERT_EQ(result.value().tensors.size(), 3u);
    double sum = 0;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const PromptScore& scored = result.value().prompts[i];
      EXPECT_EQ(scored.id, prompts[i].id);
      EXPECT_EQ(scored.num_tokens, static_cast<int64_t>(prompts[i].tokens.size()));
      EXPECT_EQ(scored.num_scored, scored.num_tokens - 1);
      EXPECT_EQ(result.value().tensors[i].name, prompts[i].id + ".logits");
      const double loss = loss_of(result.value().tensors[i], prompts[i].tokens);
      EXPECT_NEAR(scored.negative_log_likelihood, loss, 1e-9);  // doubles, logits of at most about 12
      sum += loss;
    }
    const double perplexity = std::exp(sum / 5);  // 4 + 1 + 0 predictions
    EXPECT_NEAR(result.value().perplexity(), perplexity, 1e-9 * perplexity);
  }
}

TEST(Score, NoPredictionNoPerplexity) {
  const auto model = load_golden();
  const auto result = run(*model, {{"a", ids({7})}});
  ASSERT_TRUE(result.is_ok()) << result.status().message();
  EXPECT_TRUE(std::isnan(result.value().perplexity()));
  EXPECT_EQ(result.value().prompts[0].negative_log_likelihood, 0.0);
}

TEST(Score, ProgressReachesTheTotal) {
  const auto model = load_golden();
  int64_t last = 0, total_seen = 0;
  const auto result = score(*model, {{"a", ids({1, 2, 3, 4, 5})}, {"b", ids({6, 7})}}, {.prefill_chunk = 2},
                            [&](int64_t done, int64_t total) {
                              EXPECT_GT(done, last);
                              last = done;
                              total_seen = total;
                            });
  ASSERT_TRUE(result.is_ok()) << result.status().message();
  EXPECT_EQ(last, 7);
  EXPECT_EQ(total_seen, 7);
}

TEST(Score, NamesEveryPromptItCannotScore) {
  const auto model = load_golden(with_context(4));
  const auto result =
      run(*model, {{"long", ids({1, 2, 3, 4, 5})}, {"fits", ids({1, 2, 3, 4})}, {"far", ids({1, 384})}});
  ASSERT_FALSE(result.is_ok());
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(result.status().message(), HasSubstr("prompt \"long\" has 5 tokens and the context holds 4"));
  EXPECT_THAT(result.status().message(), HasSubstr("prompt \"far\" token 1 is 384, expected an id in 0..383"));
  EXPECT_THAT(result.status().message(), Not(HasSubstr("fits")));
}

TEST(Score, NonFiniteLogitsNamePromptAndPosition) {
  const test::PoisonedModel poisoned("k3-tiny", 42);
  const auto model = load(poisoned.dir());
  const std::vector<ScorePrompt> prompts = {{"good", ids({1, 2, 3})}, {"bad", ids({4, 5, 42, 6})}};
  for (const ScoreOptions options : {ScoreOptions{}, ScoreOptions{.decode = true}, ScoreOptions{.batch = true}}) {
    const auto result = run(*model, prompts, options);
    ASSERT_FALSE(result.is_ok());
    EXPECT_EQ(result.status().code(), StatusCode::kNonFinite);
    EXPECT_THAT(result.status().message(), HasSubstr("prompt \"bad\" position 2"));
  }
  EXPECT_TRUE(run(*model, {prompts[0]}).is_ok());
}

}  // namespace
}  // namespace tandem
