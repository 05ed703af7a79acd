// The text model's fields: model.md §1.2 and §1.3 in the order of their tables.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "config/model_config_parts.h"

namespace tandem {
namespace {

constexpr IntRange kWidth{1, kMaxWidth};
constexpr IntRange kHeads{1, kMaxHeads};
constexpr IntRange kHeadDim{1, 65536};

// Reads one of the two layer lists; reports a missing list, entries outside 1..L and repeated ones.
std::optional<std::vector<int64_t>> read_layer_list(const JsonFields& linear, std::string_view key,
                                                    int64_t num_layers) {
  const std::string expected = cat("a list of layers from 1 to ", num_layers);
  if (!linear.has(key)) {
    linear.problem(key, expected);
    return std::nullopt;
  }
  auto list = linear.integer_list(key, {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()});
  if (!list.has_value()) return std::nullopt;
  std::vector<bool> seen(static_cast<size_t>(num_layers), false);
  bool good = true;
  for (const int64_t layer : *list) {
    if (layer < 1 || layer > num_layers) {
      linear.problem(key, expected, cat("layer ", layer));
      good = false;
    } else if (seen[static_cast<size_t>(layer - 1)]) {
      linear.problem(key, cat(expected, ", each once"), cat("layer ", layer, " again"));
      good = false;
    } else {
      seen[static_cast<size_t>(layer - 1)] = true;
    }
    if (linear.problems().count() > 1000) break;  // a hostile file: enough has been said
  }
  if (!good) return std::nullopt;
  return list;
}

// kinds[l] from two lists that must partition {1..L}.
void read_layer_kinds(const JsonFields& linear, ModelConfig& config) {
  const int64_t num_layers = config.num_hidden_layers;
  if (num_layers == 0) return;  // reported: without L the lists cannot be judged
  const auto kda = read_layer_list(linear, "kda_layers", num_layers);
  const auto mla = read_layer_list(linear, "full_attn_layers", num_layers);
  if (!kda.has_value() || !mla.has_value()) return;
  enum : char { kNobody, kByKda, kByMla };
  std::vector<char> owner(static_cast<size_t>(num_layers), kNobody);
  for (const int64_t layer : *kda) owner[static_cast<size_t>(layer - 1)] = kByKda;
  for (const int64_t layer : *mla) {
    char& slot = owner[static_cast<size_t>(layer - 1)];
    if (slot == kByKda) {
      linear.problem("full_attn_layers", "no layer of kda_layers", cat("layer ", layer, " in both lists"));
    }
    slot = kByMla;
  }
  config.kinds.clear();
  for (int64_t l = 0; l < num_layers; ++l) {
    const char who = owner[static_cast<size_t>(l)];
    if (who == kNobody) {
      linear.problem("kda_layers",
                     cat("kda_layers and full_attn_layers together to hold every layer from 1 to ", num_layers),
                     cat("layer ", l + 1, " in neither"));
    }
    config.kinds.push_back(who == kByKda ? LayerKind::kKda : LayerKind::kMla);
  }
}

// Value heads are the key heads here: one count, one width. Spellings that other configurations use for a different
// number of them are refused, since the state would have another shape.
void refuse_other_value_heads(const JsonFields& linear, const ModelConfig& config) {
  for (const std::string_view key :
       {"num_v_heads", "num_kv_heads", "num_k_heads", "num_value_heads", "num_key_heads"}) {
    const auto heads = linear.integer(key, kHeads);
    if (heads.has_value() && *heads != config.kda_num_heads) {
      linear.problem(key, cat("num_heads = ", config.kda_num_heads, " (KDA has as many value heads as key heads)"));
    }
  }
  for (const std::string_view key : {"head_v_dim", "v_head_dim", "head_k_dim", "value_head_dim", "key_head_dim"}) {
    const auto dim = linear.integer(key, kHeadDim);
    if (dim.has_value() && *dim != config.kda_head_dim) {
      linear.problem(key, cat("head_dim = ", config.kda_head_dim, " (KDA's keys and values are equally wide)"));
    }
  }
  const auto expansion = linear.number("expand_v");
  if (expansion.has_value() && *expansion != 1.0) linear.problem("expand_v", "1");
}

}  // namespace

void read_text_config(const JsonFields& text, ModelConfig& config) {
  config.vocab_size = text.integer("vocab_size", kWidth).value_or(163840);
  config.hidden_size = text.required_integer("hidden_size", kWidth).value_or(0);
  config.num_hidden_layers = text.required_integer("num_hidden_layers", {1, kMaxLayers}).value_or(0);
  config.num_nextn_predict_layers = text.integer("num_nextn_predict_layers", {0, 64}).value_or(0);
  const auto eps = text.positive_number("rms_norm_eps");
  if (eps.has_value() && *eps >= 1.0) text.problem("rms_norm_eps", "a number between 0 and 1");
  config.rms_norm_eps = eps.value_or(1e-6);
  read_linear_attention(text, config);
  read_attention(text, config);
  read_feed_forward(text, config);
  read_attn_res(text, config);
}

void read_linear_attention(const JsonFields& text, ModelConfig& config) {
  config.kinds.assign(static_cast<size_t>(config.num_hidden_layers), LayerKind::kMla);
  if (!text.has("linear_attn_config")) return;
  const nlohmann::json* value = text.find("linear_attn_config");
  const JsonFields linear = text.object("linear_attn_config");
  if (!value->is_object()) return;
  read_layer_kinds(linear, config);
  config.kda_num_heads = linear.required_integer("num_heads", kHeads).value_or(0);
  config.kda_head_dim = linear.required_integer("head_dim", kHeadDim).value_or(0);
  config.short_conv_kernel_size = linear.required_integer("short_conv_kernel_size", {1, 256}).value_or(0);
  config.gate_lower_bound = linear.number("gate_lower_bound");
  if (config.gate_lower_bound.has_value() && !(*config.gate_lower_bound >= -5.0 && *config.gate_lower_bound < 0.0)) {
    linear.problem("gate_lower_bound", "a number from -5 to below 0");
  }
  config.use_full_rank_gate = linear.boolean("use_full_rank_gate").value_or(false);
  if (config.kda_num_heads > 0 && config.kda_head_dim > 0) refuse_other_value_heads(linear, config);
}

void read_attention(const JsonFields& text, ModelConfig& config) {
  config.num_attention_heads = text.required_integer("num_attention_heads", kHeads).value_or(0);
  const auto kv_heads = text.integer("num_key_value_heads", kHeads);
  if (kv_heads.has_value() && config.num_attention_heads > 0 && *kv_heads != config.num_attention_heads) {
    text.problem("num_key_value_heads", cat("num_attention_heads = ", config.num_attention_heads));
  }
  // A model without MLA layers may leave MLA's fields out; those that it states are held to the same rules.
  const bool required = config.num_layers_of(LayerKind::kMla) > 0;
  const auto dimension = [&](std::string_view key, IntRange range) {
    return (required ? text.required_integer(key, range) : text.integer(key, range)).value_or(0);
  };
  config.q_lora_rank = text.integer("q_lora_rank", kWidth);
  config.kv_lora_rank = dimension("kv_lora_rank", kWidth);
  config.qk_nope_head_dim = dimension("qk_nope_head_dim", kHeadDim);
  config.qk_rope_head_dim = dimension("qk_rope_head_dim", kHeadDim);
  config.v_head_dim = dimension("v_head_dim", kHeadDim);
  if (text.has("mla_use_nope")) {
    text.expect_boolean("mla_use_nope", true);
  } else if (required) {
    text.problem("mla_use_nope", "true (rotary embeddings are not part of these models)");
  }
  config.mla_use_output_gate = text.boolean("mla_use_output_gate").value_or(false);
}

void read_attn_res(const JsonFields& text, ModelConfig& config) {
  const auto block_size = text.integer("attn_res_block_size", {1, kMaxLayers});
  const auto mode = text.text("attn_res_mode");
  if (mode.has_value() && *mode != "block" && *mode != "full") {
    text.problem("attn_res_mode", "\"block\" or \"full\"");
  }
  if (mode == "full") {
    config.attn_res_mode = AttnResMode::kFull;
  } else if (block_size.has_value()) {
    config.attn_res_mode = AttnResMode::kBlock;
    config.attn_res_block_size = *block_size;
  }
}

}  // namespace tandem
