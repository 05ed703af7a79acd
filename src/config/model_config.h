// config/model_config.h: the shape and the mathematics of one model, read from a checkpoint's config.json.
//
//   Two families: KimiK3ForConditionalGeneration (text_config nested) and KimiLinearForCausalLM (flat). Field names,
//   defaults and refusals: model.md §1. All problems of a file are reported in one Status, a line each.
//   Layers count from 0 here; the lists in the file count from 1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem {

enum class ModelFamily { kKimiK3, kKimiLinear };
enum class HiddenAct { kSitu, kSilu };
enum class AttnResMode { kNone, kBlock, kFull };
enum class LayerKind { kKda, kMla };

struct VisionConfig {
  int64_t patch_size = 14;
  int64_t init_pos_emb_height = 64;
  int64_t init_pos_emb_width = 64;
  int64_t init_pos_emb_time = 4;
  int64_t vt_hidden_size = 1024;
  int64_t vt_intermediate_size = 4096;
  int64_t vt_num_attention_heads = 12;
  int64_t vt_num_hidden_layers = 27;
  int64_t qkv_hidden_size = 1536;
  int64_t mm_hidden_size = 1024;
  int64_t merge_height = 2;
  int64_t merge_width = 2;
  double projector_ln_eps = 1e-5;
};

struct ModelConfig {
  ModelFamily family = ModelFamily::kKimiK3;

  int64_t vocab_size = 163840;
  int64_t hidden_size = 0;        // D
  int64_t num_hidden_layers = 0;  // L
  double rms_norm_eps = 1e-6;
  double mla_lora_norm_eps = 1e-6;  // q_a_layernorm and kv_a_layernorm: not a field of the file (model.md §3.2)
  bool tie_word_embeddings = false;
  int64_t num_nextn_predict_layers = 0;
  std::optional<int64_t> max_position_embeddings;  // or model_max_length; absent: no limit is stated

  // Layer map: kinds[l] of layer l; empty linear_attn_config: all MLA.
  std::vector<LayerKind> kinds;

  // KDA (0 heads when there is no linear_attn_config)
  int64_t kda_num_heads = 0;
  int64_t kda_head_dim = 0;
  int64_t short_conv_kernel_size = 0;
  std::optional<double> gate_lower_bound;  // null: softplus decay gate
  bool use_full_rank_gate = false;         // g_proj, else g_a_proj and g_b_proj

  // MLA
  int64_t num_attention_heads = 0;
  std::optional<int64_t> q_lora_rank;
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;
  bool mla_use_output_gate = false;

  // Feed-forward
  HiddenAct hidden_act = HiddenAct::kSilu;
  double situ_beta = 1.0;
  std::optional<double> situ_linear_beta;
  int64_t intermediate_size = 0;
  int64_t first_k_dense_replace = 0;
  int64_t moe_layer_freq = 1;
  int64_t num_experts = 0;  // 0: no MoE layer
  int64_t num_experts_per_token = 0;
  int64_t num_shared_experts = 0;
  int64_t moe_intermediate_size = 0;
  std::optional<int64_t> routed_expert_hidden_size;  // latent width; null: experts run at hidden_size
  bool latent_moe_use_norm = false;
  bool moe_renormalize = true;
  double routed_scaling_factor = 1.0;
  int64_t num_expert_group = 1;
  int64_t topk_group = 1;

  // Attention residuals
  AttnResMode attn_res_mode = AttnResMode::kNone;
  int64_t attn_res_block_size = 0;  // kBlock only

  std::string dtype = "bfloat16";  // activation type of the reference; informational, `torch_dtype` in older files

  // Quantisation as declared; what is on disk decides per tensor.
  bool declares_mxfp4 = false;

  // Token ids as the file states them (generation_config.json and the tokenizer may say more); not held to vocab_size.
  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;
  std::optional<int32_t> pad_token_id;
  std::optional<int32_t> media_placeholder_token_id;

  std::optional<VisionConfig> vision;

  bool is_moe(int64_t layer) const {
    return num_experts > 0 && layer >= first_k_dense_replace && layer % moe_layer_freq == 0;
  }
  bool has_latent_experts() const { return routed_expert_hidden_size.has_value(); }
  int64_t expert_input_size() const { return routed_expert_hidden_size.value_or(hidden_size); }
  int64_t kda_projection_size() const { return kda_num_heads * kda_head_dim; }  // P
  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  int64_t mla_latent_width() const { return kv_lora_rank + qk_rope_head_dim; }
  int64_t num_layers_of(LayerKind kind) const;
  // Sources that an AttnRes mix can meet at most: stored blocks plus the running sum, or every sublayer output plus the
  // embedding; 0 without AttnRes.
  int64_t max_attn_res_sources() const;
};

// `origin` names the file in messages.
Result<ModelConfig> parse_model_config(std::string_view json_text, std::string_view origin);
Result<ModelConfig> load_model_config(const std::string& model_dir);  // reads <model_dir>/config.json
Result<ModelConfig> load_model_config_file(const std::string& path);  // at most 64 MiB

}  // namespace tandem
