#include "cost/step_cost.h"

#include <algorithm>
#include <cmath>

namespace tandem {
namespace {

double amount(int64_t n) { return static_cast<double>(n); }

// Heads of MLA over all layers.
double mla_heads(const ModelCost& model) {
  return amount(model.config.num_attention_heads * model.cache.num_mla_layers());
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
  const auto layers = amount(weights.moe_layers);
  StepCost cost;
  cost.trunk_bytes = amount(weights.trunk.bytes);
  cost.trunk_flops = 2.0 * amount(weights.trunk.parameters) * rows;
  if (logit_rows > 0) cost.head_bytes = amount(weights.head.bytes);
  cost.head_flops = 2.0 * amount(weights.head.parameters) * logit_rows;
  cost.expert_bytes =
      layers * distinct_experts(amount(weights.experts_per_layer), k, rows) * amount(weights.expert.bytes);
  cost.expert_flops = 2.0 * layers * k * amount(weights.expert.parameters) * rows;
  cost.kda_flops = 7.0 * amount(model.cache.recurrent_elements() * model.cache.num_kda_layers()) * rows;
  return cost;
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

StepCost prefill_cost(const ModelCost& model, int64_t past, int64_t tokens, int64_t chunk) {
  StepCost total;
  const double pair = mla_heads(model) * expanded_pair_flops(model.config);
  const double rebuild = model.path == AttentionPath::kFast ? mla_heads(model) * rebuild_flops(model.config) : 0.0;
  for (int64_t done = 0; done < tokens; done += chunk) {
    const int64_t rows = std::min(chunk, tokens - done);
    StepCost step = weight_cost(model, amount(rows), done + rows == tokens ? 1.0 : 0.0);
    step.state_bytes = 2.0 * state_bytes_per_sequence(model);
    step.latent_bytes = amount(past + done) * cache_bytes_per_token(model);
    // Row i of the chunk sees past + done + i tokens: the mean over the chunk is taken at its middle.
    step.mla_flops = amount(rows) * (amount(past + done) + amount(rows) / 2) * pair + amount(past + done) * rebuild;
    total += step;
  }
  return total;
}

}  // namespace tandem
