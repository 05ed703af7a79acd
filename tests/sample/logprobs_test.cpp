#include "sample/logprobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tandem {
namespace {

using ::testing::HasSubstr;

TEST(Logprobs, MatchTheClosedForm) {
  const std::vector<float> logits{0.f, std::log(2.f), std::log(5.f)};  // probabilities 1/8, 2/8, 5/8
  std::vector<float> out(3);
  ASSERT_TRUE(log_softmax(logits, out).is_ok());
  const double expected[] = {std::log(0.125), std::log(0.25), std::log(0.625)};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(out[i], expected[i], 3e-7) << i;  // two f32 roundings of numbers below 2.1
    EXPECT_EQ(token_logprob(logits, TokenId(static_cast<int32_t>(i))).value(), out[i]);
  }
}

TEST(Logprobs, SurviveExtremeLogitsAndSumToOne) {
  constexpr float kMax = std::numeric_limits<float>::max();
  EXPECT_EQ(token_logprob(std::vector<float>{kMax, -kMax}, TokenId(0)).value(), 0.f);
  EXPECT_EQ(token_logprob(std::vector<float>{-kMax}, TokenId(0)).value(), 0.f);
  std::vector<float> logits(163840);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<float>(i)) * 10.f;
  ASSERT_TRUE(log_softmax(logits, logits).is_ok());  // in place
  double sum = 0.0;
  for (const float logprob : logits) sum += std::exp(static_cast<double>(logprob));
  EXPECT_NEAR(sum, 1.0, 2e-6);  // each logprob, below 32, is rounded to 1e-6
}

TEST(Logprobs, TopIsOrderedWithTiesToTheLowerId) {
  const std::vector<float> logits{1.f, 4.f, 2.f, 4.f, 0.f};
  std::vector<TokenLogprob> top;
  ASSERT_TRUE(top_logprobs(logits, 3, top).is_ok());
  ASSERT_EQ(top.size(), 3u);
  EXPECT_EQ(top[0].token, TokenId(1));
  EXPECT_EQ(top[1].token, TokenId(3));
  EXPECT_EQ(top[2].token, TokenId(2));
  for (const TokenLogprob& entry : top) EXPECT_EQ(entry.logprob, token_logprob(logits, entry.token).value());
  ASSERT_TRUE(top_logprobs(logits, 99, top).is_ok());
  EXPECT_EQ(top.size(), 5u);
  ASSERT_TRUE(top_logprobs(logits, 0, top).is_ok());
  EXPECT_TRUE(top.empty());
}

TEST(Logprobs, ATokensOwnComesWithTheBestOnesAtTheSameNumbers) {
  std::vector<float> logits(1000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<float>(i)) * 7.f;
  std::vector<TokenLogprob> top, expected;
  for (const int64_t count : {0, 1, 20}) {
    const TokenId token(static_cast<int32_t>(37 * count));
    const Result<float> own = token_logprob(logits, token, count, top);
    ASSERT_TRUE(own.is_ok());
    EXPECT_EQ(own.value(), token_logprob(logits, token).value());
    ASSERT_TRUE(top_logprobs(logits, count, expected).is_ok());
    ASSERT_EQ(top.size(), expected.size());
    for (size_t i = 0; i < top.size(); ++i) {
      EXPECT_EQ(top[i].token, expected[i].token);
      EXPECT_EQ(top[i].logprob, expected[i].logprob);
    }
  }
  EXPECT_EQ(token_logprob(logits, TokenId(1000), 1, top).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(token_logprob(logits, TokenId(0), -1, top).status().code(), StatusCode::kInvalidArgument);
}

TEST(Logprobs, BadInputIsNamed) {
  std::vector<float> out(2);
  std::vector<TokenLogprob> top;
  const std::vector<float> bad{0.f, NAN};
  EXPECT_EQ(log_softmax(bad, out).code(), StatusCode::kNonFinite);
  EXPECT_THAT(token_logprob(bad, TokenId(0)).status().message(), HasSubstr("logits[1]"));
  EXPECT_EQ(top_logprobs(bad, 1, top).code(), StatusCode::kNonFinite);
  EXPECT_EQ(log_softmax({}, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(log_softmax(std::vector<float>{1.f}, out).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(token_logprob(out, TokenId(2)).status().message(), HasSubstr("token 2: expected an id in [0, 2)"));
  EXPECT_EQ(top_logprobs(out, -1, top).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem
