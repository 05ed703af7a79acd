// sample/sampler.h: from the logits of one position to a token.
//
//   Order      1. logit_bias is added
//              2. repetition_penalty r, over prompt and generated tokens:  l > 0 ? l / r : l · r
//              3. frequency_penalty and presence_penalty, over generated tokens only:  l − f · count − p · [count > 0]
//              4. temperature 0 (below kGreedyTemperature): the largest l, ties to the lowest id. Else l / temperature
//              5. top_k: the k best, ties to the lower id
//              6. top_p: of those, the fewest best whose probability, renormalised after top_k, reaches top_p; never
//              none
//              7. min_p: of those, the ones at least min_p times as probable as the best
//              8. draw. Parameters mean what they mean in vLLM, but a tie at the edge of top_k or top_p keeps the lower
//                 id only, where vLLM keeps all of the tie in top_k.
//   Randomness draw i, i = tokens accepted so far, uses draw i of Philox stream `seed` (sample/philox.h). sample()
//   changes
//              nothing a later call sees; accept() commits. A rejected draft therefore leaves no trace. exp is our own
//              polynomial: the same seed and logits give the same token on every platform and compiler.
//   Errors     kNonFinite on a NaN or infinite logit, naming its index and value: never a token made up from one.
//              kInvalidArgument when the biases forbid every token or the logits have another length than the
//              vocabulary.
//   Threading  a Sampler belongs to one sequence, a SamplerScratch to one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace tandem {

inline constexpr double kGreedyTemperature = 1e-5;  // below it, dividing logits by it would overflow f32
inline constexpr int32_t kMaxLogprobs = 20;

struct LogitBias {
  TokenId token;
  float bias = 0.f;  // -infinity forbids the token
};

struct SamplingParams {
  double temperature = 1.0;         // [0, 2]; 0 is greedy
  int32_t top_k = 0;                // 0 or −1: off; may exceed the vocabulary
  double top_p = 1.0;               // [0, 1]; 0 keeps the best token only
  double min_p = 0.0;               // [0, 1]
  double repetition_penalty = 1.0;  // above 0; 1 is off
  double presence_penalty = 0.0;    // [−2, 2]
  double frequency_penalty = 0.0;   // [−2, 2]
  std::vector<LogitBias> logit_bias;
  std::optional<uint64_t> seed;  // none: a fresh stream for each sequence
  int32_t num_logprobs = 0;      // [0, kMaxLogprobs]: alternatives wanted with each token

  // Every field in range, each token of logit_bias once and below vocab_size; all problems in one message, a line each.
  Status validate(int64_t vocab_size) const;
  bool is_greedy() const { return temperature < kGreedyTemperature; }
};

// Buffers of sample(), grown to the vocabulary by the first call and kept: later calls allocate nothing.
struct SamplerScratch {
  std::vector<float> logits;       // after bias and penalties
  std::vector<float> weights;      // exp((l − max) / temperature), 0 outside the kept set
  std::vector<uint16_t> buckets;   // of the distance to the best, by token
  std::vector<uint64_t> keys;      // candidates of a partial selection
  std::vector<double> block_sums;  // of weights

  // Room for every call over this vocabulary, on whichever thread the first one comes.
  void reserve(int64_t vocab_size);
};

class Sampler {
 public:
  // `fallback_seed` is the stream when params.seed is absent: random_seed(), or a value of the caller's.
  static Result<Sampler> create(SamplingParams params, int64_t vocab_size, uint64_t fallback_seed);

  // The prompt's tokens, for repetition_penalty; may be called in pieces. kInvalidArgument outside the vocabulary.
  Status note_prompt(std::span<const TokenId> tokens);

  // The next token for the logits [vocab_size] of this position.
  Result<TokenId> sample(std::span<const float> logits, SamplerScratch& scratch) const;

  // Commits a generated token, sampled or forced: it counts for the penalties and advances the random stream.
  void accept(TokenId token);

  const SamplingParams& params() const { return params_; }
  int64_t vocab_size() const { return vocab_size_; }
  int64_t num_accepted() const { return num_accepted_; }
  uint64_t seed() const { return seed_; }

 private:
  Sampler(SamplingParams params, int64_t vocab_size, uint64_t seed);
  void adjust_logits(std::span<float> logits) const;

  // Occurrences of a token: generated in the low 31 bits, top bit set when it is in the prompt.
  static constexpr uint32_t kInPrompt = 0x80000000u;

  SamplingParams params_;
  int64_t vocab_size_ = 0;
  uint64_t seed_ = 0;
  int64_t num_accepted_ = 0;
  std::vector<uint32_t> occurrences_;  // [vocab_size], empty when no penalty is on
  std::vector<int32_t> seen_;          // tokens with a non-zero entry above; capacity vocab_size
};

// A seed from the operating system's entropy.
uint64_t random_seed();

}  // namespace tandem
