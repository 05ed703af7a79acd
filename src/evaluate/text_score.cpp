#include "evaluate/text_score.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/cat.h"
#include "cache/sequence_cache.h"

namespace tandem {
namespace {

// −log2 softmax(logits)[target].
Result<double> bits_of(std::span<const float> logits, TokenId target) {
  float largest = logits[0];
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      return Status::non_finite(cat("logit ", i, " is ", logits[i], ", expected a finite number"));
    }
    largest = std::max(largest, logits[i]);
  }
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  const double nats = largest + std::log(sum) - logits[static_cast<size_t>(target.value)];
  return nats / std::numbers::ln2;
}

// One sequence through the model, chunk by chunk.
class Reader {
 public:
  explicit Reader(LoadedModel& model) : model_(model), cache_(model.cache_layout()) {}

  void restart() { cache_.reset(); }
  Result<MatrixView<float>> read(std::span<const TokenId> tokens, StepMode mode, LogitsWanted logits) {
    const int64_t length = cache_.length();
    TANDEM_RETURN_IF_ERROR(cache_.reserve(length + static_cast<int64_t>(tokens.size())));
    plan_.tokens.assign(tokens.begin(), tokens.end());
    plan_.sequences = {{.cache = 0,
                        .num_tokens = static_cast<int64_t>(tokens.size()),
                        .num_computed_tokens = length,
                        .mode = mode,
                        .logits = logits,
                        .captures = {}}};
    const std::array<SequenceCacheView, 1> views = {cache_.view()};
    return model_.model().forward(model_.exec(), plan_, views);
  }

 private:
  LoadedModel& model_;
  SequenceCache cache_;
  StepPlan plan_;
};

size_t best_of(const float* row, int64_t count) {
  return static_cast<size_t>(std::max_element(row, row + count) - row);
}

}  // namespace

Result<TextScore> score_text(LoadedModel& model, const Tokenizer& tokenizer, std::string_view text,
                             const TextScoreOptions& options, FunctionRef<void(int64_t, int64_t)> progress) {
  TANDEM_CHECK(
      options.context_tokens >= 1 && options.context_tokens < options.window_tokens && options.prefill_chunk >= 1,
      "a window is longer than the context it shares with the one before");
  const std::vector<TokenId> ids = tokenizer.encode_text(text);
  const auto total = static_cast<int64_t>(ids.size());
  TextScore score{static_cast<int64_t>(text.size()), total, 0};
  if (total == 0) return score;
  score.bits = std::log2(static_cast<double>(model.config().vocab_size));
  Reader reader(model);
  int64_t scored = 1;  // tokens predicted so far
  for (int64_t window = 0; scored < total; window += options.window_tokens - options.context_tokens) {
    reader.restart();
    const int64_t window_end = std::min(total, window + options.window_tokens);
    // The last token of a window predicts what only the next one scores, from its own context.
    for (int64_t begin = window; begin < window_end - 1;) {
      const int64_t end = std::min(window_end - 1, begin + options.prefill_chunk);
      const bool wanted = end >= scored;
      const auto logits =
          reader.read(std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                      StepMode::kPrefill, wanted ? LogitsWanted::kAll : LogitsWanted::kNone);
      if (!logits.is_ok()) return logits.status();
      for (int64_t i = std::max(begin, scored - 1); i < end; ++i) {
        const std::span<const float> row(logits.value().row(i - begin), static_cast<size_t>(logits.value().shape[1]));
        const auto bits = bits_of(row, ids[static_cast<size_t>(i + 1)]);
        if (!bits.is_ok()) return Status::non_finite(cat("token ", i, " of the text: ", bits.status().message()));
        score.bits += bits.value();
        ++scored;
      }
      begin = end;
      progress(scored, total);
    }
  }
  return score;
}

Result<PrefillDecodeLaw> check_prefill_is_decode(LoadedModel& model, std::span<const TokenId> tokens,
                                                 int64_t prefill_chunk) {
  PrefillDecodeLaw law;
  Reader prefill(model), decode(model);
  std::vector<float> chunk;  // the next step resets the arena that holds its logits
  for (size_t begin = 0; begin < tokens.size(); begin += static_cast<size_t>(prefill_chunk)) {
    const auto part = tokens.subspan(begin, std::min(tokens.size() - begin, static_cast<size_t>(prefill_chunk)));
    const auto logits = prefill.read(part, StepMode::kPrefill, LogitsWanted::kAll);
    if (!logits.is_ok()) return logits.status();
    const int64_t vocab_size = logits.value().shape[1];
    chunk.clear();
    for (size_t i = 0; i < part.size(); ++i) {
      const float* row = logits.value().row(static_cast<int64_t>(i));
      chunk.insert(chunk.end(), row, row + vocab_size);
    }
    for (size_t i = 0; i < part.size(); ++i) {
      const auto single = decode.read(part.subspan(i, 1), StepMode::kDecode, LogitsWanted::kAll);
      if (!single.is_ok()) return single.status();
      const float* expected = chunk.data() + static_cast<int64_t>(i) * vocab_size;
      const float* found = single.value().row(0);
      for (int64_t v = 0; v < vocab_size; ++v) {
        const double difference = std::abs(static_cast<double>(expected[v]) - found[v]);
        if (!std::isfinite(difference)) {
          return Status::non_finite(cat("position ", law.positions, " logit ", v, ": ", expected[v], " in prefill, ",
                                        found[v], " in decode, expected finite numbers"));
        }
        law.max_difference = std::max(law.max_difference, difference);
      }
      ++law.positions;
      law.same_best += best_of(expected, vocab_size) == best_of(found, vocab_size) ? 1 : 0;
    }
  }
  return law;
}

}  // namespace tandem
