// evaluate/text_score.h: the bits that a model needs for a text, position by position.
//
//   The text is cut into windows that overlap: window k reads tokens [k s, k s + window), s = window − context, and
//   scores those that no window before it scored, so that every token but the first of the text is predicted exactly
//   once, from at least `context` tokens where the text has them. The first one has nothing in front of it (there is
//   no BOS) and counts log2(vocabulary) bits. Bytes are those of the text; its end is not coded.
//   Threading: engine thread only.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/function_ref.h"
#include "base/result.h"
#include "engine/loaded_model.h"

namespace tandem {

struct TextScoreOptions {
  int64_t window_tokens = 2048;
  int64_t context_tokens = 512;  // below window_tokens
  int64_t prefill_chunk = 256;   // logits of so many rows are held at a time
};

struct TextScore {
  int64_t bytes = 0;
  int64_t tokens = 0;
  double bits = 0;

  double bits_per_byte() const { return bytes == 0 ? 0 : bits / static_cast<double>(bytes); }
  double tokens_per_byte() const { return bytes == 0 ? 0 : static_cast<double>(tokens) / static_cast<double>(bytes); }
  void add(const TextScore& other) {
    bytes += other.bytes;
    tokens += other.tokens;
    bits += other.bits;
  }
};

// `progress` hears tokens scored of all. kNonFinite when a logit is.
Result<TextScore> score_text(LoadedModel& model, const Tokenizer& tokenizer, std::string_view text,
                             const TextScoreOptions& options, FunctionRef<void(int64_t, int64_t)> progress);

// One text in chunks of `prefill_chunk` and again a token at a time: the engine's law prefill ≡ decode on this model.
struct PrefillDecodeLaw {
  int64_t positions = 0;
  int64_t same_best = 0;  // positions whose largest logit is the same token's
  double max_difference = 0;
};
Result<PrefillDecodeLaw> check_prefill_is_decode(LoadedModel& model, std::span<const TokenId> tokens,
                                                 int64_t prefill_chunk);

}  // namespace tandem
