// tests/train/small_models.h: configurations of odd sizes, small enough for central differences in fp64.
#pragma once

#include "config/model_config.h"

namespace tandem::test {

// K3's form: bounded gate, full-rank output gate, q-LoRA, gated MLA, SiTU, latent experts with groups, AttnRes. Five
// layers: dense and KDA first, blocks of two and a partial one, the last two MLA.
inline ModelConfig small_k3() {
  ModelConfig c;
  c.family = ModelFamily::kKimiK3;
  c.vocab_size = 19;
  c.hidden_size = 10;
  c.num_hidden_layers = 5;
  c.rms_norm_eps = 1e-5;
  c.kinds = {LayerKind::kKda, LayerKind::kMla, LayerKind::kKda, LayerKind::kMla, LayerKind::kMla};
  c.kda_num_heads = 3;
  c.kda_head_dim = 5;
  c.short_conv_kernel_size = 4;
  c.gate_lower_bound = -5.0;
  c.use_full_rank_gate = true;
  c.num_attention_heads = 2;
  c.q_lora_rank = 7;
  c.kv_lora_rank = 6;
  c.qk_nope_head_dim = 5;
  c.qk_rope_head_dim = 3;
  c.v_head_dim = 4;
  c.mla_use_output_gate = true;
  c.hidden_act = HiddenAct::kSitu;
  c.situ_beta = 4.0;
  c.situ_linear_beta = 25.0;
  c.intermediate_size = 9;
  c.first_k_dense_replace = 1;
  c.num_experts = 6;
  c.num_experts_per_token = 3;
  c.num_shared_experts = 2;
  c.moe_intermediate_size = 5;
  c.routed_expert_hidden_size = 7;
  c.latent_moe_use_norm = true;
  c.num_expert_group = 3;
  c.topk_group = 2;
  c.attn_res_mode = AttnResMode::kBlock;
  c.attn_res_block_size = 2;
  return c;
}

// Kimi-Linear's form: softplus gate, low-rank output gate, direct query, no MLA gate, SwiGLU, experts at full width,
// scaled weights, plain residual.
inline ModelConfig small_kimi_linear() {
  ModelConfig c = small_k3();
  c.family = ModelFamily::kKimiLinear;
  c.num_hidden_layers = 3;
  c.kinds = {LayerKind::kKda, LayerKind::kKda, LayerKind::kMla};
  c.gate_lower_bound.reset();
  c.use_full_rank_gate = false;
  c.q_lora_rank.reset();
  c.mla_use_output_gate = false;
  c.hidden_act = HiddenAct::kSilu;
  c.situ_linear_beta.reset();
  c.num_shared_experts = 1;
  c.routed_expert_hidden_size.reset();
  c.latent_moe_use_norm = false;
  c.routed_scaling_factor = 2.446;
  c.num_expert_group = 1;
  c.topk_group = 1;
  c.attn_res_mode = AttnResMode::kNone;
  c.attn_res_block_size = 0;
  return c;
}

}  // namespace tandem::test
