#include "cost/step_cost.h"

#include <algorithm>
#include <cmath>

namespace tandem {
namespace {

double amount(int64_t n) { return static_cast<double>(n); }

// Heads of MLA over all layers, and of the last one.
double mla_heads(const ModelCost& model) {
  return amount(model.config.num_attention_heads * model.cache.num_mla_layers());
}
double last_mla_heads(const ModelCost& model) {
  return model.config.kinds.back() == LayerKind::kMla ? amount(model.config.num_attention_heads) : 0.0;
}

// A (query, key) pair of one head: score and value.
double expanded_pair_flops(const ModelConfig& config) { return 2.0 * amount(config.qk_head_dim() + config.v_head_dim); }
double absorbed_pair_flops(const ModelConfig& config) {
  return 2.0 * amount(config.mla_latent_width() + config.kv_lora_rank);
}
// Keys and values of one cached token and head from its latent.
double rebuild_flops(const ModelConfig& config) {
  return 2.0 * amount(config.kv_lora_rank * (config.qk_nope_head_dim + config.v_head_dim));
}

// Weights of one step of `rows` tokens, `logit_rows` of which have logits.
StepCost weight_cost(const ModelCost& model, double rows, double logit_rows) {
  const WeightSizes& weights = model.weights;
  const auto k = amount(model.config.num_experts_per_token);
  StepCost cost;
  cost.trunk_bytes = amount(weights.trunk.bytes);
  cost.trunk_flops = 2.0 * (amount(weights.trunk.parameters) * rows -
                            amount(weights.last_behind_cache.parameters) * (rows - logit_rows));
  if (logit_rows > 0) {
    cost.head_bytes = amount(weights.head.bytes);
  } else {
    cost.trunk_bytes -= amount(weights.last_behind_cache.bytes + weights.last_kv_b.bytes);
    cost.trunk_flops -= 2.0 * amount(weights.last_kv_b.parameters) * rows;
  }
  cost.head_flops = 2.0 * amount(weights.head.parameters) * logit_rows;
  const double last_moe = weights.moe_layers > 0 && model.config.is_moe(model.config.num_hidden_layers - 1) ? 1.0 : 0.0;
  const double other_moe = amount(weights.moe_layers) - last_moe;
  const auto experts = amount(weights.experts_per_layer);
  cost.expert_bytes = amount(weights.expert.bytes) * (other_moe * distinct_experts(experts, k, rows) +
                                                      last_moe * distinct_experts(experts, k, logit_rows));
  cost.expert_flops = 2.0 * k * amount(weights.expert.parameters) * (other_moe * rows + last_moe * logit_rows);
  cost.kda_flops = 7.0 * amount(model.cache.recurrent_elements() * model.cache.num_kda_layers()) * rows;
  return cost;
}

// MLA in a step of `rows` tokens behind `past`, expanded. Row i sees past + i tokens: the mean is taken at the middle
// of the rows, in the last layer of those with logits, which are the last ones.
double expanded_mla_flops(const ModelCost& model, double past, double rows, double logit_rows) {
  const double last = last_mla_heads(model), others = mla_heads(model) - last;
  const double pairs = others * rows * (past + rows / 2) + last * logit_rows * (past + rows - logit_rows / 2);
  double flops = pairs * expanded_pair_flops(model.config);
  if (model.path == AttentionPath::kFast) {
    flops += (others + (logit_rows > 0 ? last : 0.0)) * past * rebuild_flops(model.config);
  }
  return flops;
}

// Of the MLA layers, those that read their cache.
double reading_share(const ModelCost& model, double logit_rows) {
  if (logit_rows > 0 || model.config.kinds.back() != LayerKind::kMla) return 1.0;
  const auto layers = amount(model.cache.num_mla_layers());
  return (layers - 1) / layers;
}

double logit_rows_of(PromptLogits logits, int64_t rows, bool is_last) {
  switch (logits) {
    case PromptLogits::kNone: return 0;
    case PromptLogits::kLast: return is_last ? 1 : 0;
    case PromptLogits::kAll: return amount(rows);
  }
  return 0;
}

}  // namespace

StepCost& StepCost::operator+=(const StepCost& other) {
  trunk_bytes += other.trunk_bytes;
  head_bytes += other.head_bytes;
  expert_bytes += other.expert_bytes;
  state_bytes += other.state_bytes;
  latent_bytes += other.latent_bytes;
  trunk_flops += other.trunk_flops;
  head_flops += other.head_flops;
  expert_flops += other.expert_flops;
  kda_flops += other.kda_flops;
  mla_flops += other.mla_flops;
  return *this;
}

double distinct_experts(double experts, double experts_per_token, double rows) {
  if (experts <= 0) return 0;
  return experts * (1.0 - std::pow(1.0 - experts_per_token / experts, rows));
}

double cache_bytes_per_token(const ModelCost& model) {
  if (model.path == AttentionPath::kFast) return amount(model.cache.latent_bytes_per_token());
  const double elements = mla_heads(model) * amount(model.config.qk_head_dim() + model.config.v_head_dim);
  return elements * amount(dtype_size(model.cache.dtype));
}

double state_bytes_per_sequence(const ModelCost& model) { return amount(model.cache.state_bytes()); }

StepCost decode_cost(const ModelCost& model, double depth, double sequences) {
  StepCost cost = weight_cost(model, sequences, sequences);
  cost.state_bytes = sequences * 2.0 * state_bytes_per_sequence(model);
  cost.latent_bytes = sequences * depth * cache_bytes_per_token(model);
  const double pair =
      model.path == AttentionPath::kFast ? absorbed_pair_flops(model.config) : expanded_pair_flops(model.config);
  cost.mla_flops = sequences * depth * mla_heads(model) * pair;
  return cost;
}

StepCost prefill_cost(const ModelCost& model, int64_t past, int64_t tokens, int64_t chunk, PromptLogits logits) {
  StepCost total;
  for (int64_t done = 0; done < tokens; done += chunk) {
    const int64_t rows = std::min(chunk, tokens - done);
    const double logit_rows = logit_rows_of(logits, rows, done + rows == tokens);
    StepCost step = weight_cost(model, amount(rows), logit_rows);
    step.state_bytes = 2.0 * state_bytes_per_sequence(model);
    step.latent_bytes = amount(past + done) * cache_bytes_per_token(model) * reading_share(model, logit_rows);
    step.mla_flops = expanded_mla_flops(model, amount(past + done), amount(rows), logit_rows);
    total += step;
  }
  return total;
}

}  // namespace tandem
