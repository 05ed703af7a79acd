#include "model/plan_check.h"

#include <algorithm>

#include "base/cat.h"

namespace tandem {
namespace {

bool is_cache_dtype(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

Status check_layers(const ModelConfig& config, int64_t index, const SequenceCacheView& cache) {
  if (static_cast<int64_t>(cache.layers.size()) != config.num_hidden_layers) {
    return Status::invalid(cat("step plan: cache ", index, " has ", cache.layers.size(), " layers, the model has ",
                               config.num_hidden_layers));
  }
  for (size_t l = 0; l < cache.layers.size(); ++l) {
    const auto* state = std::get_if<KdaState>(&cache.layers[l]);
    if ((state != nullptr) != (config.kinds[l] == LayerKind::kKda)) {
      return Status::invalid(cat("step plan: cache ", index, " layer ", l, " is of the other kind: the model has ",
                                 config.kinds[l] == LayerKind::kKda ? "KDA" : "MLA", " there"));
    }
    const DType dtype = state != nullptr ? state->dtype : std::get<MlaLatent>(cache.layers[l]).dtype;
    if (!is_cache_dtype(dtype)) {
      return Status::unsupported(
          cat("step plan: cache ", index, " layer ", l, " has dtype ", dtype_name(dtype), ", expected F32 or BF16"));
    }
  }
  return Status::ok();
}

Status check_sequence(const ModelConfig& config, size_t index, const SequenceStep& sequence,
                      const SequenceCacheView& cache) {
  TANDEM_RETURN_IF_ERROR(check_layers(config, sequence.cache, cache));
  const Result<int64_t> length = agreed_length(cache);
  if (!length.is_ok()) return length.status();
  if (length.value() != sequence.num_computed_tokens) {
    return Status::failed_precondition(cat("step plan: sequence ", index, " starts at token ",
                                           sequence.num_computed_tokens, " and its cache holds ", length.value()));
  }
  for (size_t l = 0; l < cache.layers.size(); ++l) {
    const auto* latent = std::get_if<MlaLatent>(&cache.layers[l]);
    if (latent != nullptr && latent->capacity() < length.value() + sequence.num_tokens) {
      return Status::failed_precondition(cat("step plan: sequence ", index, " needs room for ",
                                             length.value() + sequence.num_tokens, " tokens in layer ", l,
                                             ", its page table has ", latent->capacity()));
    }
  }
  int64_t previous = 0;
  for (const StateCapture& capture : sequence.captures) {
    if (capture.num_tokens <= previous || capture.num_tokens > sequence.num_tokens) {
      return Status::invalid(cat("step plan: sequence ", index, " captures after ", capture.num_tokens,
                                 " tokens; expected ascending positions in 1..", sequence.num_tokens));
    }
    previous = capture.num_tokens;
  }
  return Status::ok();
}

}  // namespace

Status check_step_plan(const ModelConfig& config, const StepPlan& plan, std::span<const SequenceCacheView> caches,
                       Arena& arena) {
  if (plan.sequences.empty()) return Status::invalid("step plan: no sequences");
  const ArenaScope scratch(arena);
  const std::span<bool> used = arena.alloc<bool>(static_cast<int64_t>(caches.size()));
  std::fill(used.begin(), used.end(), false);
  const auto claim = [&](int64_t cache) -> Status {
    if (cache < 0 || cache >= static_cast<int64_t>(caches.size())) {
      return Status::invalid(cat("step plan: cache index ", cache, " of ", caches.size()));
    }
    if (used[static_cast<size_t>(cache)]) return Status::invalid(cat("step plan: cache ", cache, " is named twice"));
    used[static_cast<size_t>(cache)] = true;
    return Status::ok();
  };
  int64_t rows = 0;
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    const SequenceStep& sequence = plan.sequences[s];
    if (sequence.num_tokens < 1) return Status::invalid(cat("step plan: sequence ", s, " has no tokens"));
    TANDEM_RETURN_IF_ERROR(claim(sequence.cache));
    TANDEM_RETURN_IF_ERROR(check_sequence(config, s, sequence, caches[static_cast<size_t>(sequence.cache)]));
    for (const StateCapture& capture : sequence.captures) {
      TANDEM_RETURN_IF_ERROR(claim(capture.cache));
      TANDEM_RETURN_IF_ERROR(check_layers(config, capture.cache, caches[static_cast<size_t>(capture.cache)]));
    }
    rows += sequence.num_tokens;
  }
  if (rows != static_cast<int64_t>(plan.tokens.size())) {
    return Status::invalid(cat("step plan: ", plan.tokens.size(), " tokens for ", rows, " rows"));
  }
  for (size_t i = 0; i < plan.tokens.size(); ++i) {
    const int32_t token = plan.tokens[i].value;
    if (token < 0 || token >= config.vocab_size) {
      return Status::invalid(cat("token ", i, " is ", token, ", expected an id in 0..", config.vocab_size - 1));
    }
  }
  return Status::ok();
}

}  // namespace tandem
