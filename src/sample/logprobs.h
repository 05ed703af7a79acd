// sample/logprobs.h: log-probabilities of raw logits: before bias, penalties and temperature, as vLLM reports them.
//
//   Numerics   f64 sums, f32 results.
//   Errors     kNonFinite on a NaN or infinite logit, naming its index and value; kInvalidArgument on empty logits, a
//              wrong length or a token outside them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace tandem {

struct TokenLogprob {
  TokenId token;
  float logprob = 0.f;
};

// kNonFinite naming the first logit that is NaN or infinite.
Status check_finite(std::span<const float> logits);

Status log_softmax(std::span<const float> logits, std::span<float> out);  // out may be logits

Result<float> token_logprob(std::span<const float> logits, TokenId token);
// The same, and the `count` most probable tokens in `top`, as top_logprobs(): with one sum over the vocabulary.
Result<float> token_logprob(std::span<const float> logits, TokenId token, int64_t count,
                            std::vector<TokenLogprob>& top);

// The `count` most probable tokens, best first, ties to the lower id; all of them when count exceeds the vocabulary.
Status top_logprobs(std::span<const float> logits, int64_t count, std::vector<TokenLogprob>& out);

}  // namespace tandem
