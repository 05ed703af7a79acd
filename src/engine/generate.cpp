#include "engine/generate.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "base/cat.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

std::string_view finish_reason_name(FinishReason reason) { return reason == FinishReason::kStop ? "stop" : "length"; }

Generator::Generator(LoadedModel& model) : model_(model), cache_(model.cache_layout()) {}

Status Generator::check(const GenerateRequest& request) const {
  if (request.prompt.empty()) return Status::invalid("the prompt is empty: expected at least one token");
  if (request.max_tokens < 1) {
    return Status::invalid(cat("max tokens is ", request.max_tokens, ", expected at least 1"));
  }
  if (request.prefill_chunk < 1) {
    return Status::invalid(cat("prefill chunk is ", request.prefill_chunk, " tokens, expected at least 1"));
  }
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length >= model_.context_limit()) {
    return Status::invalid(cat("the prompt has ", length, " tokens and the context holds ", model_.context_limit(),
                               ": expected at most ", model_.context_limit() - 1, ", to leave room for one more"));
  }
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    const int32_t id = request.prompt[i].value;
    if (id < 0 || id >= model_.config().vocab_size) {
      return Status::invalid(
          cat("prompt token ", i, " is ", id, ", expected an id in 0..", model_.config().vocab_size - 1));
    }
  }
  return request.sampling.validate(model_.config().vocab_size);
}

int64_t Generator::reusable_prefix(const std::vector<TokenId>& prompt) const {
  // At least one token must be computed to have logits.
  if (cached_.empty() || cached_.size() >= prompt.size()) return 0;
  const bool extends = std::equal(cached_.begin(), cached_.end(), prompt.begin());
  return extends ? static_cast<int64_t>(cached_.size()) : 0;
}

Result<std::span<const float>> Generator::step(std::span<const TokenId> tokens, StepMode mode) {
  TANDEM_RETURN_IF_ERROR(cache_.reserve(cache_.length() + static_cast<int64_t>(tokens.size())));
  plan_.tokens.assign(tokens.begin(), tokens.end());
  plan_.sequences.resize(1);
  plan_.sequences[0] = SequenceStep{.cache = 0,
                                    .num_tokens = static_cast<int64_t>(tokens.size()),
                                    .num_computed_tokens = cache_.length(),
                                    .mode = mode,
                                    .logits = LogitsWanted::kLast,
                                    .captures = {}};
  const std::array<SequenceCacheView, 1> views = {cache_.view()};
  const Result<MatrixView<float>> logits = model_.model().forward(model_.exec(), plan_, views);
  if (!logits.is_ok()) return logits.status();
  cached_.insert(cached_.end(), tokens.begin(), tokens.end());
  return std::span<const float>(logits.value().row(0), static_cast<size_t>(logits.value().shape[1]));
}

Result<GenerateResult> Generator::run(const GenerateRequest& request, FunctionRef<bool(TokenId)> on_token) {
  const Clock::time_point start = Clock::now();
  TANDEM_RETURN_IF_ERROR(check(request));
  Result<Sampler> created = Sampler::create(request.sampling, model_.config().vocab_size, random_seed());
  if (!created.is_ok()) return created.status();
  Sampler sampler = std::move(created).value();
  TANDEM_RETURN_IF_ERROR(sampler.note_prompt(request.prompt));

  GenerateResult result;
  result.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  result.cached_tokens = reusable_prefix(request.prompt);
  if (result.cached_tokens == 0) {
    cache_.reset();
    cached_.clear();
  }
  // A step that fails leaves the cache unusable; the next call must start from an empty one.
  const auto run_step = [&](std::span<const TokenId> tokens, StepMode mode) {
    Result<std::span<const float>> logits = step(tokens, mode);
    if (!logits.is_ok()) {
      cache_.reset();
      cached_.clear();
    }
    return logits;
  };

  std::span<const float> logits;
  const std::span<const TokenId> prompt(request.prompt);
  for (size_t begin = static_cast<size_t>(result.cached_tokens); begin < prompt.size();) {
    // Chunks end on the grid anchored at token 0, so that the split does not depend on where the cache ended.
    const auto chunk = static_cast<size_t>(request.prefill_chunk);
    const size_t end = std::min(prompt.size(), (begin / chunk + 1) * chunk);
    const Result<std::span<const float>> chunk_logits =
        run_step(prompt.subspan(begin, end - begin), StepMode::kPrefill);
    if (!chunk_logits.is_ok()) return chunk_logits.status();
    logits = chunk_logits.value();
    begin = end;
  }
  result.timings.prefill_seconds = seconds_since(start);

  while (true) {
    const Result<TokenId> token = sampler.sample(logits, scratch_);
    if (!token.is_ok()) return token.status();
    if (result.tokens.empty()) result.timings.time_to_first_token_seconds = seconds_since(start);
    const bool is_stop =
        std::find(request.stop_tokens.begin(), request.stop_tokens.end(), token.value()) != request.stop_tokens.end();
    if (is_stop && !request.ignore_eos) {
      result.finish_reason = FinishReason::kStop;
      break;
    }
    sampler.accept(token.value());
    result.tokens.push_back(token.value());
    if (!on_token(token.value())) {
      result.finish_reason = FinishReason::kStop;
      break;
    }
    if (static_cast<int64_t>(result.tokens.size()) >= request.max_tokens) break;
    if (cache_.length() + 1 >= model_.context_limit()) break;  // the next token would have no room for its successor
    const std::array<TokenId, 1> next = {token.value()};
    const Result<std::span<const float>> next_logits = run_step(next, StepMode::kDecode);
    if (!next_logits.is_ok()) return next_logits.status();
    logits = next_logits.value();
  }
  result.timings.decode_seconds = seconds_since(start) - result.timings.time_to_first_token_seconds;
  return result;
}

}  // namespace tandem
