#include <nlohmann/json.hpp>

#include "plan_output.h"

namespace tandem::app {
namespace {

using Json = nlohmann::ordered_json;

template <class Value>
Json optional(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json machine_json(const PlanOptions& options) {
  const Machine& m = options.machine;
  const Efficiency& e = options.efficiency;
  return {{"name", m.name},
          {"memory_bytes", optional(m.memory_bytes)},
          {"memory_bytes_per_s", optional(m.memory_rate)},
          {"flops_per_s", optional(m.flops_rate)},
          {"disk_bytes_per_s", optional(m.disk_rate)},
          {"host_memory_bytes", m.is_gpu ? Json(m.host_bytes) : Json(nullptr)},
          {"host_link_bytes_per_s", m.is_gpu ? optional(m.host_rate) : Json(nullptr)},
          {"efficiency",
           {{"memory", e.memory},
            {"decode_flops", e.decode_flops},
            {"prefill_flops", e.prefill_flops},
            {"attention_flops", e.attention_flops},
            {"overlap", e.overlap},
            {"disk", e.disk},
            {"layer_seconds", e.layer_seconds},
            {"row_seconds", e.row_seconds}}}};
}

Json weights_json(const ModelPlan& plan) {
  const WeightSizes& w = plan.cost.weights;
  const int64_t k = plan.cost.config.num_experts_per_token;
  Json groups = Json::object();
  for (int g = 0; g < kNumTensorGroups; ++g) {
    const WeightAmount& amount = w.groups[static_cast<size_t>(g)];
    if (amount.bytes == 0) continue;
    groups[std::string(tensor_group_name(static_cast<TensorGroup>(g)))] = {{"bytes", amount.bytes},
                                                                           {"parameters", amount.parameters}};
  }
  return {{"file_bytes", w.file_bytes},
          {"parameters", w.text().parameters},
          {"active_parameters", w.active_parameters(k)},
          {"groups", std::move(groups)},
          {"trunk_bytes", w.trunk.bytes + w.head.bytes},
          {"vector_bytes", w.vector_bytes},
          {"expert_bytes", w.expert.bytes},
          {"experts_per_layer", w.experts_per_layer},
          {"experts_per_token", k},
          {"moe_layers", w.moe_layers},
          {"routed_bytes", w.routed_bytes()},
          {"routed_bytes_per_token", w.moe_layers * k * w.expert.bytes}};
}

Json sequence_json(const SequenceMemory& memory) {
  return {
      {"bytes", memory.total()}, {"states", memory.states}, {"latents", memory.latents}, {"padding", memory.padding}};
}

Json cache_json(const ModelPlan& plan) {
  const CacheLayout& cache = plan.cost.cache;
  Json out = {{"dtype", dtype_name(cache.dtype)},           {"kda_layers", cache.num_kda_layers()},
              {"mla_layers", cache.num_mla_layers()},       {"bytes_per_token", cache_bytes_per_token(plan.cost)},
              {"bytes_per_sequence", cache.state_bytes()},  {"recurrent_bytes_per_layer", cache.recurrent_bytes()},
              {"conv_bytes_per_layer", cache.conv_bytes()}, {"alone", sequence_json(plan.cache.alone)}};
  out["alone"]["page_tokens"] = plan.cache.page_tokens;
  out["served"] = nullptr;
  if (plan.cache.pool) {
    const PoolLayout& pool = *plan.cache.pool;
    out["served"] = sequence_json(plan.cache.pooled);
    out["served"]["blocks"] = plan.cache.pool_blocks;
    out["served"]["block_bytes"] = pool.block_bytes();
    out["served"]["page_tokens"] = pool.cache.page_tokens;
    out["served"]["kda_groups"] = pool.num_kda_groups;
  }
  return out;
}

Json scratch_json(const StepScratch& scratch) {
  return {{"peak_bytes", scratch.peak_bytes},
          {"reserved_bytes", scratch.reserved_bytes},
          {"residual_bytes", scratch.residual_bytes},
          {"layer_bytes", scratch.layer_bytes},
          {"layer", scratch.layer}};
}

Json memory_json(const ModelPlan& plan) {
  const Placement& place = plan.placement;
  Json out = {{"trunk", plan.fixed.trunk},
              {"embedding", plan.fixed.embedding},
              {"cache", plan.fixed.cache},
              {"scratch", plan.fixed.scratch},
              {"scratch_prefill", scratch_json(plan.prefill_scratch)},
              {"scratch_decode", scratch_json(plan.decode_scratch)},
              {"resident_bytes", plan.resident_memory_bytes},
              {"disk_hides_at_bytes", optional(plan.memory_to_hide_disk)},
              {"placement", nullptr}};
  if (place.known) {
    out["placement"] = {{"memory_experts", place.memory_experts},
                        {"host_experts", place.host_experts},
                        {"disk_experts", place.disk_experts},
                        {"disk_bytes", place.disk_experts * plan.cost.weights.expert.bytes},
                        {"trunk_missing_bytes", place.trunk_missing}};
  }
  return out;
}

Json cost_json(const StepCost& cost) {
  return {{"trunk_bytes", cost.trunk_bytes}, {"head_bytes", cost.head_bytes},     {"expert_bytes", cost.expert_bytes},
          {"state_bytes", cost.state_bytes}, {"latent_bytes", cost.latent_bytes}, {"bytes", cost.bytes()},
          {"trunk_flops", cost.trunk_flops}, {"head_flops", cost.head_flops},     {"expert_flops", cost.expert_flops},
          {"kda_flops", cost.kda_flops},     {"mla_flops", cost.mla_flops},       {"flops", cost.flops()}};
}

Json time_json(const std::optional<PhaseTime>& time, double tokens) {
  if (!time) return nullptr;
  return {{"floor_seconds", time->floor_seconds},
          {"floor_limit", limit_name(time->floor_limit)},
          {"floor_tok_s", tokens / time->floor_seconds},
          {"seconds", time->seconds},
          {"limit", limit_name(time->limit)},
          {"tok_s", tokens / time->seconds},
          {"disk_bytes", time->disk_bytes},
          {"link_bytes", time->link_bytes}};
}

void put_phases(const ModelPlan& plan, Json& document) {
  Json decode = Json::array();
  for (const DecodePoint& point : plan.decode) {
    decode.push_back({{"context", point.context},
                      {"batch", point.batch},
                      {"distinct_experts", point.distinct_experts},
                      {"cost", cost_json(point.cost)},
                      {"time", time_json(point.time, static_cast<double>(point.batch))}});
  }
  Json prefill = Json::array();
  for (const PrefillPoint& point : plan.prefill) {
    prefill.push_back({{"tokens", point.tokens},
                       {"cost", cost_json(point.cost)},
                       {"time", time_json(point.time, static_cast<double>(point.tokens))}});
  }
  document["decode"] = std::move(decode);
  document["prefill"] = std::move(prefill);
  document["knee"] = {{"decode_batch", optional(plan.decode_knee)}, {"prefill_tokens", optional(plan.prefill_knee)}};
  Json restores = Json::array();
  for (const RestorePoint& point : plan.restores) {
    restores.push_back({{"tier", point.tier},
                        {"bytes_per_s", point.rate},
                        {"tokens", point.tokens},
                        {"restore_bytes", point.hit.restore_bytes},
                        {"restore_seconds", point.hit.restore_seconds},
                        {"recompute_seconds", point.hit.recompute_seconds},
                        {"break_even_tokens", optional(point.break_even_tokens)}});
  }
  document["prefix_hits"] = std::move(restores);
}

Json compare_json(const Comparison& comparison) {
  const CompareOptions& options = comparison.options;
  Json out = {{"sequences", comparison.sequences},
              {"gqa_groups", options.gqa_groups},
              {"indexer_heads", options.indexer_heads},
              {"indexer_head_dim", options.indexer_head_dim},
              {"indexer_key_bytes", options.indexer_key_bytes},
              {"top_k", options.top_k},
              {"attentions", Json::array()},
              {"crossings", Json::array()}};
  for (size_t i = 0; i < kNumAttentions; ++i) {
    Json points = Json::array();
    for (const ComparePoint& point : comparison.points[i]) {
      points.push_back({{"context", point.context},
                        {"cache_bytes", point.cache_bytes},
                        {"traffic_bytes", point.traffic_bytes},
                        {"attention_flops", point.attention_flops},
                        {"ttft_seconds", optional(point.ttft_seconds)},
                        {"tpot_seconds", optional(point.tpot_seconds)}});
    }
    out["attentions"].push_back({{"name", attention_name(static_cast<Attention>(i))},
                                 {"parameters", comparison.parameters[i]},
                                 {"bytes_per_token", comparison.bytes_per_token[i]},
                                 {"bytes_per_sequence", comparison.bytes_per_sequence[i]},
                                 {"points", std::move(points)}});
  }
  for (const Crossing& crossing : comparison.crossings) {
    out["crossings"].push_back({{"quantity", crossing.quantity},
                                {"other", attention_name(crossing.other)},
                                {"hybrid_less_at_start", crossing.hybrid_less_at_start},
                                {"contexts", crossing.contexts}});
  }
  return out;
}

}  // namespace

std::string plan_json(const ModelPlan& plan) {
  const PlanOptions& options = plan.options;
  Json document = {{"model", plan.model},
                   {"source", plan.from_headers ? "checkpoint" : "config"},
                   {"path", plan.cost.path == AttentionPath::kFast ? "fast" : "reference"},
                   {"context", options.context},
                   {"sequences", options.sequences},
                   {"prompt", options.prompt},
                   {"prefill_chunk", options.prefill_chunk},
                   {"threads", options.threads},
                   {"machine", machine_json(options)},
                   {"weights", weights_json(plan)},
                   {"cache", cache_json(plan)},
                   {"memory", memory_json(plan)}};
  put_phases(plan, document);
  document["compare"] = plan.comparison ? compare_json(*plan.comparison) : Json(nullptr);
  document["notes"] = plan.notes;
  return document.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tandem::app
