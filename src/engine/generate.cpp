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

Result<std::span<const float>> Generator::step(std::span<const TokenId> tokens, StepMode mode,
                                               LogitsWanted logits_wanted) {
  const int64_t needed = cache_.length() + static_cast<int64_t>(tokens.size());
  if (needed > reserved_tokens_) {
    // Half as much again: a long generation grows its page tables a few times, not at every page.
    const int64_t wanted = std::min(model_.context_limit(), needed + needed / 2 + kDefaultPageTokens);
    TANDEM_RETURN_IF_ERROR(cache_.reserve(std::max(needed, wanted)));
    reserved_tokens_ = std::max(needed, wanted);
  }
  plan_.tokens.assign(tokens.begin(), tokens.end());
  plan_.sequences.resize(1);
  plan_.sequences[0] = SequenceStep{.cache = 0,
                                    .num_tokens = static_cast<int64_t>(tokens.size()),
                                    .num_computed_tokens = cache_.length(),
                                    .mode = mode,
                                    .logits = logits_wanted,
                                    .captures = {}};
  const std::array<SequenceCacheView, 1> views = {cache_.view()};
  const Result<MatrixView<float>> logits = model_.model().forward(model_.exec(), plan_, views, observer_);
  if (!logits.is_ok()) return logits.status();
  cached_.insert(cached_.end(), tokens.begin(), tokens.end());
  if (logits.value().shape[0] == 0) return std::span<const float>();
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
  result.cached_tokens = request.reuse_cache ? reusable_prefix(request.prompt) : 0;
  if (result.cached_tokens == 0) forget();
  Result<std::span<const float>> logits = prefill(request, result.cached_tokens);
  Status status = logits.status();
  if (logits.is_ok()) {
    result.timings.prefill_seconds = seconds_since(start);
    status = decode(request, sampler, logits.value(), on_token, start, result);
  }
  if (!status.is_ok()) {
    forget();  // a failed step, or logits that are not finite: what the cache holds must not be continued from
    return status;
  }
  result.timings.decode_seconds = seconds_since(start) - result.timings.time_to_first_token_seconds;
  return result;
}

void Generator::forget() {
  cache_.reset();
  cached_.clear();
}

Result<std::span<const float>> Generator::prefill(const GenerateRequest& request, int64_t begin) {
  const std::span<const TokenId> prompt(request.prompt);
  while (true) {
    // Chunks end on the grid anchored at token 0, so that the split does not depend on where the cache ended.
    const int64_t end =
        std::min(static_cast<int64_t>(prompt.size()), (begin / request.prefill_chunk + 1) * request.prefill_chunk);
    const bool is_last = end == static_cast<int64_t>(prompt.size());
    Result<std::span<const float>> logits =
        step(prompt.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), StepMode::kPrefill,
             is_last ? LogitsWanted::kLast : LogitsWanted::kNone);
    if (!logits.is_ok() || is_last) return logits;
    begin = end;
  }
}

Status Generator::decode(const GenerateRequest& request, Sampler& sampler, std::span<const float> logits,
                         FunctionRef<bool(TokenId)> on_token, Clock::time_point start, GenerateResult& result) {
  const auto is_stop = [&](TokenId token) {
    return !request.ignore_eos &&
           std::find(request.stop_tokens.begin(), request.stop_tokens.end(), token) != request.stop_tokens.end();
  };
  result.finish_reason = FinishReason::kStop;
  while (true) {
    const Result<TokenId> token = sampler.sample(logits, scratch_);
    if (!token.is_ok()) return token.status();
    if (result.tokens.empty()) result.timings.time_to_first_token_seconds = seconds_since(start);
    if (is_stop(token.value())) return Status::ok();
    sampler.accept(token.value());
    result.tokens.push_back(token.value());
    if (!on_token(token.value())) return Status::ok();
    const bool is_full = cache_.length() + 1 >= model_.context_limit();  // no room for this token and a next one
    if (is_full || static_cast<int64_t>(result.tokens.size()) >= request.max_tokens) {
      result.finish_reason = FinishReason::kLength;
      return Status::ok();
    }
    const std::array<TokenId, 1> next = {token.value()};
    const Result<std::span<const float>> next_logits = step(next, StepMode::kDecode, LogitsWanted::kLast);
    if (!next_logits.is_ok()) return next_logits.status();
    logits = next_logits.value();
  }
}

}  // namespace tandem
