// engine/generate.h: text generation for one sequence: prefill in chunks, then decode a token at a time.
//
//   A Generator keeps its sequence cache between calls. A prompt that begins with exactly the tokens the cache holds is
//   continued from there; any other prompt starts from an empty cache, because a KDA state cannot be cut back.
//   Threading: engine thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "base/function_ref.h"
#include "base/result.h"
#include "cache/sequence_cache.h"
#include "engine/loaded_model.h"
#include "sample/sampler.h"

namespace tandem {

inline constexpr int64_t kDefaultPrefillChunk = 512;

enum class FinishReason { kStop, kLength };
std::string_view finish_reason_name(FinishReason reason);  // "stop", "length"

struct GenerateRequest {
  std::vector<TokenId> prompt;
  SamplingParams sampling;
  int64_t max_tokens = 0;
  bool ignore_eos = false;  // stop tokens neither stop nor are left out
  std::vector<TokenId> stop_tokens;
  int64_t prefill_chunk = kDefaultPrefillChunk;
  // False: the prompt is computed from its start. What the cache holds was partly decoded, and equals a prefill within
  // rounding only (ADR 0002): with a chunk that is a multiple of 16 the result then depends on the request alone.
  bool reuse_cache = true;
};

struct GenerateTimings {
  double prefill_seconds = 0.0;
  double time_to_first_token_seconds = 0.0;
  double decode_seconds = 0.0;  // for the tokens after the first
};

struct GenerateResult {
  std::vector<TokenId> tokens;  // generated ones only, a stop token not included
  FinishReason finish_reason = FinishReason::kLength;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, taken from the cache
  GenerateTimings timings;
};

class Generator {
 public:
  explicit Generator(LoadedModel& model);
  void set_observer(StepObserver* observer) { observer_ = observer; }  // of every step; may be null

  // on_token is called for every generated token as it is chosen; returning false stops the generation.
  // kInvalidArgument for an empty or too long prompt and for ids outside the vocabulary; kNonFinite when the logits
  // are.
  Result<GenerateResult> run(const GenerateRequest& request, FunctionRef<bool(TokenId)> on_token);

 private:
  Status check(const GenerateRequest& request) const;
  int64_t reusable_prefix(const std::vector<TokenId>& prompt) const;
  void forget();  // an empty cache
  // The prompt from token `begin` on; the last row's logits.
  Result<std::span<const float>> prefill(const GenerateRequest& request, int64_t begin);
  Status decode(const GenerateRequest& request, Sampler& sampler, std::span<const float> logits,
                FunctionRef<bool(TokenId)> on_token, std::chrono::steady_clock::time_point start,
                GenerateResult& result);
  // Runs `tokens` as one step and returns the first wanted row's logits; empty if none is wanted.
  Result<std::span<const float>> step(std::span<const TokenId> tokens, StepMode mode, LogitsWanted logits_wanted);

  LoadedModel& model_;
  StepObserver* observer_ = nullptr;
  SequenceCache cache_;
  std::vector<TokenId> cached_;  // the tokens that cache_ holds
  int64_t reserved_tokens_ = 0;  // room in cache_
  StepPlan plan_;
  SamplerScratch scratch_;
};

}  // namespace tandem
