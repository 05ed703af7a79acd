#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "sample/sampler.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SamplingParams, DefaultsAndBoundsAreValid) {
  EXPECT_TRUE(SamplingParams{}.validate(1).is_ok());
  SamplingParams params;
  params.temperature = 0.0, params.top_k = -1, params.top_p = 0.0, params.min_p = 1.0;
  params.presence_penalty = -2.0, params.frequency_penalty = 2.0, params.num_logprobs = kMaxLogprobs;
  params.logit_bias = {{TokenId(0), -INFINITY}, {TokenId(9), 100.f}};
  EXPECT_TRUE(params.validate(10).is_ok()) << params.validate(10).message();
}

TEST(SamplingParams, EachFieldIsRangeCheckedAndNamed) {
  struct Case {
    std::function<void(SamplingParams&)> spoil;
    const char* field;
    const char* found;
  };
  const Case cases[] = {
      {[](SamplingParams& p) { p.temperature = -0.1; }, "temperature: expected", "found -0.1"},
      {[](SamplingParams& p) { p.temperature = 2.5; }, "temperature: expected", "found 2.5"},
      {[](SamplingParams& p) { p.temperature = NAN; }, "temperature: expected", "nan"},
      {[](SamplingParams& p) { p.top_k = -2; }, "top_k: expected", "found -2"},
      {[](SamplingParams& p) { p.top_p = 1.01; }, "top_p: expected", "found 1.01"},
      {[](SamplingParams& p) { p.top_p = NAN; }, "top_p: expected", "nan"},
      {[](SamplingParams& p) { p.min_p = -1e-9; }, "min_p: expected", "found -1e-09"},
      {[](SamplingParams& p) { p.repetition_penalty = 0.0; }, "repetition_penalty: expected", "found 0"},
      {[](SamplingParams& p) { p.repetition_penalty = INFINITY; }, "repetition_penalty: expected", "found inf"},
      {[](SamplingParams& p) { p.presence_penalty = 2.1; }, "presence_penalty: expected", "found 2.1"},
      {[](SamplingParams& p) { p.frequency_penalty = -3.0; }, "frequency_penalty: expected", "found -3"},
      {[](SamplingParams& p) {
         p.logit_bias = {{TokenId(10), 1.f}};
       },
       "logit_bias: expected", "found 10"},
      {[](SamplingParams& p) {
         p.logit_bias = {{TokenId(-1), 1.f}};
       },
       "logit_bias: expected", "found -1"},
      {[](SamplingParams& p) {
         p.logit_bias = {{TokenId(3), NAN}};
       },
       "logit_bias of token 3: expected", "nan"},
      {[](SamplingParams& p) {
         p.logit_bias = {{TokenId(3), INFINITY}};
       },
       "logit_bias of token 3: expected", "inf"},
      {[](SamplingParams& p) {
         p.logit_bias = {{TokenId(3), 1.f}, {TokenId(4), 1.f}, {TokenId(3), 2.f}};
       },
       "logit_bias: expected each token once", "found 3 twice"},
      {[](SamplingParams& p) { p.num_logprobs = 21; }, "num_logprobs: expected", "found 21"},
  };
  for (const Case& c : cases) {
    SamplingParams params;
    c.spoil(params);
    const Status status = params.validate(10);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.field;
    EXPECT_THAT(status.message(), AllOf(HasSubstr(c.field), HasSubstr(c.found)));
    EXPECT_FALSE(Sampler::create(params, 10, 0).is_ok()) << c.field;
  }
  EXPECT_THAT(SamplingParams{}.validate(0).message(), HasSubstr("vocab_size: expected"));
}

TEST(SamplingParams, AllProblemsAtOnce) {
  SamplingParams params;
  params.temperature = -1.0;
  params.top_p = 7.0;
  params.num_logprobs = -1;
  EXPECT_THAT(params.validate(10).message(),
              AllOf(HasSubstr("temperature"), HasSubstr("top_p"), HasSubstr("num_logprobs")));
}

}  // namespace
}  // namespace tandem
