// The feed-forward fields: activation, dense MLP, mixture of experts, router; and the bound on the whole model's size.
#include "base/cat.h"
#include "config/model_config_parts.h"

namespace tandem {
namespace {

constexpr IntRange kWidth{1, kMaxWidth};

void read_activation(const JsonFields& text, ModelConfig& config) {
  const std::string act = text.text("hidden_act").value_or("silu");
  if (act == "silu") {
    config.hidden_act = HiddenAct::kSilu;
    return;
  }
  if (act != "situ") {
    if (text.has("hidden_act")) text.problem("hidden_act", "\"situ\" or \"silu\"");
    return;
  }
  config.hidden_act = HiddenAct::kSitu;
  for (const std::string_view key : {"activation_situ_beta", "activation_situ_linear_beta"}) {
    if (!text.has(key)) text.problem(key, "a number above 0 (hidden_act is situ)");
  }
  config.situ_beta = text.positive_number("activation_situ_beta").value_or(1.0);
  config.situ_linear_beta = text.positive_number("activation_situ_linear_beta");
}

// The rules of group-limited selection: E experts in G equal groups, k chosen from the best topk_group of them, and a
// group judged by its two best experts.
void read_groups(const JsonFields& text, int64_t experts, int64_t chosen, ModelConfig& config) {
  const auto groups = text.integer("num_expert_group", {1, kMaxExperts});
  const auto kept = text.integer("topk_group", {1, kMaxExperts});
  const bool grouped = text.boolean("use_grouped_topk").value_or(true);
  const int64_t G = groups.value_or(1);
  const int64_t K = kept.value_or(1);
  if (K > G) text.problem("topk_group", cat("at most num_expert_group = ", G), cat(K));
  if (experts > 0 && experts % G != 0) {
    text.problem("num_expert_group", cat("a divisor of num_experts = ", experts), cat(G));
  } else if (grouped && K < G && experts > 0) {
    const int64_t group_size = experts / G;
    if (group_size < 2) text.problem("num_expert_group", "groups of at least 2 experts", cat("groups of ", group_size));
    if (chosen > K * group_size) {
      text.problem("num_experts_per_token",
                   cat("at most the ", K * group_size, " experts of topk_group = ", K, " groups"), cat(chosen));
    }
  }
  if (!grouped) return;
  config.num_expert_group = G;
  config.topk_group = K;
}

void read_moe(const JsonFields& text, ModelConfig& config) {
  const auto experts = text.integer("num_experts", {0, kMaxExperts});
  config.num_experts = experts.value_or(0);
  config.num_shared_experts = text.integer("num_shared_experts", {0, kMaxExperts}).value_or(0);
  config.routed_expert_hidden_size = text.integer("routed_expert_hidden_size", kWidth);
  config.latent_moe_use_norm = text.boolean("latent_moe_use_norm").value_or(false);
  config.moe_renormalize = text.boolean("moe_renormalize").value_or(true);
  config.routed_scaling_factor = text.positive_number("routed_scaling_factor").value_or(1.0);
  text.expect_text("moe_router_activation_func", "sigmoid");
  text.expect_text("topk_method", "noaux_tc");
  const bool has_moe = config.num_experts > 0;
  const auto field = [&](std::string_view key, IntRange range) {
    return (has_moe ? text.required_integer(key, range) : text.integer(key, range)).value_or(0);
  };
  config.num_experts_per_token = field("num_experts_per_token", {1, kMaxExperts});
  config.moe_intermediate_size = field("moe_intermediate_size", kWidth);
  if (has_moe && config.num_experts_per_token > config.num_experts) {
    text.problem("num_experts_per_token", cat("at most num_experts = ", config.num_experts));
  }
  read_groups(text, config.num_experts, config.num_experts_per_token, config);
}

}  // namespace

void read_feed_forward(const JsonFields& text, ModelConfig& config) {
  read_activation(text, config);
  config.intermediate_size = text.required_integer("intermediate_size", kWidth).value_or(0);
  config.first_k_dense_replace = text.integer("first_k_dense_replace", {0, kMaxLayers}).value_or(0);
  config.moe_layer_freq = text.integer("moe_layer_freq", {1, kMaxLayers}).value_or(1);
  read_moe(text, config);
}

void check_total_size(const ModelConfig& c, ConfigProblems& problems) {
  // In double, where nothing overflows; 2^56 f32 values are 2^58 bytes, far inside int64.
  constexpr double kMaxParameters = 72057594037927936.0;  // 2^56
  const auto D = static_cast<double>(c.hidden_size);
  const auto L = static_cast<double>(c.num_hidden_layers + c.num_nextn_predict_layers);
  const double P = static_cast<double>(c.kda_num_heads) * static_cast<double>(c.kda_head_dim);
  const auto H = static_cast<double>(c.num_attention_heads);
  const double kda =
      P * (6 * D + 2 * static_cast<double>(c.kda_head_dim) + 3 * static_cast<double>(c.short_conv_kernel_size)) +
      static_cast<double>(c.kda_num_heads + 2 * c.kda_head_dim) * D;
  const auto rq = static_cast<double>(c.q_lora_rank.value_or(0));
  const auto query = H * static_cast<double>(c.qk_head_dim());
  const double mla = (D + rq) * query + rq * D + static_cast<double>(c.mla_latent_width()) * D +
                     H * static_cast<double>(c.qk_nope_head_dim + c.v_head_dim) * static_cast<double>(c.kv_lora_rank) +
                     2 * H * static_cast<double>(c.v_head_dim) * D;
  const auto I = static_cast<double>(c.moe_intermediate_size);
  const auto Dl = static_cast<double>(c.expert_input_size());
  const double moe = static_cast<double>(c.num_experts) * (3 * I * Dl + D) +
                     3 * I * static_cast<double>(c.num_shared_experts) * D + 2 * Dl * D;
  const double per_layer = kda + mla + moe + 3 * D * static_cast<double>(c.intermediate_size) + 10 * D;
  const double ends = (2 + 2 * static_cast<double>(c.num_nextn_predict_layers)) * static_cast<double>(c.vocab_size) * D;
  const double total = L * per_layer + ends;
  // The recurrent state of a sequence has an extent of its own.
  const double state = L * P * static_cast<double>(c.kda_head_dim);
  if (total > kMaxParameters || state > kMaxParameters) {
    problems.add_line(cat("the shapes together: expected at most 2^56 values, found about ", total + state));
  }
}

}  // namespace tandem
