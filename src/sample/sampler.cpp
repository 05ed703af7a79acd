#include "sample/sampler.h"

#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "base/cat.h"
#include "base/check.h"
#include "sample/categorical.h"
#include "sample/logprobs.h"
#include "sample/philox.h"

namespace tandem {
namespace {

bool has_penalty(const SamplingParams& params) {
  return params.repetition_penalty != 1.0 || params.presence_penalty != 0.0 || params.frequency_penalty != 0.0;
}

// An extreme penalty or bias saturates instead of making an infinity that the input did not have.
float to_finite_f32(double value) {
  constexpr double kMax = static_cast<double>(std::numeric_limits<float>::max());
  return static_cast<float>(std::clamp(value, -kMax, kMax));
}

}  // namespace

Sampler::Sampler(SamplingParams params, int64_t vocab_size, uint64_t seed)
    : params_(std::move(params)), vocab_size_(vocab_size), seed_(seed) {
  if (!has_penalty(params_)) return;
  occurrences_.resize(static_cast<size_t>(vocab_size));
  seen_.reserve(static_cast<size_t>(vocab_size));
}

void SamplerScratch::reserve(int64_t vocab_size) {
  const auto count = static_cast<size_t>(vocab_size);
  logits.reserve(count);
  weights.reserve(count);
  buckets.reserve(count);
  keys.reserve(count);
  block_sums.reserve(count);
}

Result<Sampler> Sampler::create(SamplingParams params, int64_t vocab_size, uint64_t fallback_seed) {
  TANDEM_RETURN_IF_ERROR(params.validate(vocab_size));
  const uint64_t seed = params.seed.value_or(fallback_seed);
  return Sampler(std::move(params), vocab_size, seed);
}

Status Sampler::note_prompt(std::span<const TokenId> tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].value < 0 || tokens[i].value >= vocab_size_) {
      return Status::invalid(
          cat("prompt token ", i, ": expected an id in [0, ", vocab_size_, "), found ", tokens[i].value));
    }
  }
  if (occurrences_.empty()) return Status::ok();
  for (const TokenId token : tokens) {
    uint32_t& entry = occurrences_[static_cast<size_t>(token.value)];
    if (entry == 0) seen_.push_back(token.value);
    entry |= kInPrompt;
  }
  return Status::ok();
}

void Sampler::accept(TokenId token) {
  TANDEM_CHECK(token.value >= 0 && token.value < vocab_size_, "an accepted token lies in the vocabulary");
  ++num_accepted_;
  if (occurrences_.empty()) return;
  uint32_t& entry = occurrences_[static_cast<size_t>(token.value)];
  if (entry == 0) seen_.push_back(token.value);
  ++entry;
}

void Sampler::adjust_logits(std::span<float> logits) const {
  for (const LogitBias& entry : params_.logit_bias) {
    float& logit = logits[static_cast<size_t>(entry.token.value)];
    logit = entry.bias == -INFINITY ? entry.bias
                                    : to_finite_f32(static_cast<double>(logit) + static_cast<double>(entry.bias));
  }
  for (const int32_t token : seen_) {
    float& logit = logits[static_cast<size_t>(token)];
    if (logit == -INFINITY) continue;
    double value = static_cast<double>(logit);
    value = value > 0.0 ? value / params_.repetition_penalty : value * params_.repetition_penalty;
    const uint32_t generated = occurrences_[static_cast<size_t>(token)] & ~kInPrompt;
    if (generated > 0) value -= params_.frequency_penalty * generated + params_.presence_penalty;
    logit = to_finite_f32(value);
  }
}

Result<TokenId> Sampler::sample(std::span<const float> logits, SamplerScratch& scratch) const {
  if (static_cast<int64_t>(logits.size()) != vocab_size_) {
    return Status::invalid(cat("logits: expected ", vocab_size_, " of them, found ", logits.size()));
  }
  if (params_.is_greedy() && params_.logit_bias.empty() && seen_.empty()) {
    const std::optional<int32_t> best = finite_arg_max(logits);
    return best ? Result<TokenId>(TokenId(*best)) : Result<TokenId>(check_finite(logits));
  }
  TANDEM_RETURN_IF_ERROR(check_finite(logits));
  scratch.logits.assign(logits.begin(), logits.end());
  adjust_logits(scratch.logits);
  const std::optional<int32_t> best = arg_max(scratch.logits);
  if (!best.has_value())
    return Status::invalid("logit_bias: expected at least one possible token, found every one at -inf");
  if (params_.is_greedy()) return TokenId(*best);

  const Distance distance{scratch.logits[static_cast<size_t>(*best)], static_cast<float>(1.0 / params_.temperature)};
  compute_weights(scratch, distance);
  keep_most_probable(scratch, distance, params_.top_k, params_.top_p, params_.min_p);
  return TokenId(draw(scratch, philox_uniform(seed_, static_cast<uint64_t>(num_accepted_))));
}

uint64_t random_seed() {
  uint64_t seed = 0;
  if (getentropy(&seed, sizeof seed) == 0) return seed;
  // A kernel without entropy: a stream need not be secret, only different from the last one.
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

}  // namespace tandem
