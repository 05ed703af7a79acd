// weights/model_weights.h: the text model's parameters by role, bound to the mapped files of a checkpoint.
//
//   Matrices are views of the file, in the type it stores. Small vectors (norms, conv taps, biases, gates) are widened
//   to f32 once, exactly, and owned here: a few MB that every kernel can then read without a format switch.
//   Lifetime: views borrow from the Checkpoint, which outlives this. Threading: immutable after binding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "base/result.h"
#include "config/model_config.h"
#include "tensor/weight_view.h"

namespace tandem {

class Checkpoint;
struct CheckpointReport;

struct KdaLayerWeights {
  WeightView q_proj, k_proj, v_proj;  // [P, D]
  std::vector<float> conv_weight;     // [3P, W]: the q, k and v taps one after the other
  WeightView f_a_proj, f_b_proj;      // [d, D], [P, d]
  WeightView b_proj;                  // [H, D]
  std::vector<float> a_log;           // [H]
  std::vector<float> dt_bias;         // [P]
  WeightView g_proj;                  // [P, D], full-rank gate
  WeightView g_a_proj, g_b_proj;      // [d, D], [P, d], low-rank gate (g_proj is empty then)
  std::vector<float> o_norm;          // [d]
  WeightView o_proj;                  // [D, P]
};

struct MlaLayerWeights {
  WeightView q_proj;                  // [H·dqk, D], without q-LoRA
  WeightView q_a_proj, q_b_proj;      // [rq, D], [H·dqk, rq], with it (q_proj is empty then)
  std::vector<float> q_a_layernorm;   // [rq]
  WeightView kv_a_proj;               // [r + dr, D]
  std::vector<float> kv_a_layernorm;  // [r]
  WeightView kv_b_proj;               // [H·(dn + dv), r]
  WeightView g_proj;                  // [H·dv, D], or empty
  WeightView o_proj;                  // [D, H·dv]
};

struct MlpWeights {
  WeightView gate_proj, up_proj;  // [I, D]
  WeightView down_proj;           // [D, I]
};

struct MoeLayerWeights {
  WeightView router;                           // [E, D]
  std::vector<float> e_score_correction_bias;  // [E]
  WeightView latent_down, latent_up;           // [Dl, D], [D, Dl]; empty without a latent
  std::vector<float> latent_norm;              // [Dl]; empty without one
  std::optional<MlpWeights> shared_experts;
  std::vector<ExpertWeights> experts;  // E
};

// The fold norm_weight ⊙ pseudo-query of one AttnRes mix, [D].
using AttnResScoreWeight = std::vector<float>;

struct LayerWeights {
  std::variant<KdaLayerWeights, MlaLayerWeights> attention;
  std::variant<MlpWeights, MoeLayerWeights> feed_forward;
  std::vector<float> input_layernorm, post_attention_layernorm;  // [D]
  AttnResScoreWeight self_attention_res, mlp_res;                // empty without AttnRes
};

struct ModelWeights {
  WeightView embed_tokens;  // [vocab, D]
  std::vector<LayerWeights> layers;
  AttnResScoreWeight output_attn_res;  // empty without AttnRes
  std::vector<float> norm;             // [D]
  WeightView lm_head;                  // [vocab, D]; embed_tokens when tied
  // Copies of matrices that the file stores at an address their element type does not allow; empty for the usual file.
  std::vector<std::unique_ptr<std::byte[]>> realigned;
};

// Every missing, mis-shaped or unknown tensor in one Status (weights/checkpoint_check.h). The checkpoint is open in
// Mode::kMap. Read at load: the small vectors, A_log's padding (exactly zero), and the MXFP4 scales (255 is NaN) as
// long as all of them together are below 256 MiB; larger models find such a scale as a non-finite result.
struct BindOptions {
  // The experts' views only say where they lie on disk: a stream (stream/expert_store.h) reads them into memory of its
  // own. No byte of them is touched, so that no page of theirs enters memory: their scales are checked as they are
  // read, and a view may be at an address that its element type does not allow.
  bool streamed_experts = false;
  CheckpointReport* report = nullptr;  // receives what the file holds
};
Result<ModelWeights> bind_model_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                                        const BindOptions& options = {});

// Does what was left out for streamed experts that stay in memory after all: `weights` are then as bound without.
Status keep_experts(const Checkpoint& checkpoint, const ModelConfig& config, const CheckpointReport& report,
                    ModelWeights& weights);

}  // namespace tandem
