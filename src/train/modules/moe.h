// train/modules/moe.h: feed-forward layers with gradients: dense MLP, router, Stable LatentMoE.
//
//   Experts: rows are sorted by expert, experts of similar load are padded to one length and multiplied as a batch;
//   each bucket's experts have more than half of its length, so less than half of a batch is padding. Sums over a
//   token's experts are gathers, not scattered additions: the result does not depend on thread timing.
//   Source: model.md §3.6–3.9; quantities of Quantile Balancing: systems.md §9.1;
//   MXFP8 inputs: §5.2.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/result.h"
#include "config/model_config.h"
#include "train/modules/layer_parameters.h"

namespace tandem::train {

// SiTU or SwiGLU of the configuration; in float for the 16-bit types.
at::Tensor gated_act(const ModelConfig& config, const at::Tensor& gate, const at::Tensor& up);

struct Routing {
  at::Tensor ids;      // [T, k] int64, ascending in a row
  at::Tensor weights;  // [T, k] renormalised and scaled, with gradient
  at::Tensor scores;   // [T, E] σ(logits), without gradient
  at::Tensor cutoff;   // [T] the (k+1)-th largest biased score, without gradient; undefined when k = E
};
// logits [T, E] in float or double; bias [E] takes part in the selection alone. Equal scores: the lower id wins.
Routing route(const ModelConfig& config, const at::Tensor& logits, const at::Tensor& bias);

// One expert's matrices a slice: w1, w3 [E, I, Dl], w2 [E, Dl, I].
struct ExpertStack {
  at::Tensor w1, w3, w2;
  bool mxfp8_inputs = false;  // what a matrix is multiplied with is MXFP8, straight through; Dl and I multiples of 32
};
// Σ_j weights_j · W2 act(W1 z, W3 z) over the experts of each row; z [T, Dl] → [T, Dl].
at::Tensor routed_experts(const ModelConfig& config, const ExpertStack& experts, const at::Tensor& z,
                          const Routing& routing);
// kInvalidArgument when the experts' inputs are no multiple of 32 wide. The engine refuses the same widths.
Status check_mxfp8_widths(const ModelConfig& config);

at::Tensor dense_mlp(const ModelConfig& config, const LayerParameters& weights, const at::Tensor& x);

struct MoeOptions {
  bool mxfp4_experts = false;      // the forward pass sees MXFP4 experts, the gradient passes straight through
  bool mxfp8_activations = false;  // the same of the experts' inputs as MXFP8; check_mxfp8_widths() is ok
  Routing* routing = nullptr;      // receives the layer's routing
};
at::Tensor moe_layer(const ModelConfig& config, const LayerParameters& weights, const at::Tensor& x,
                     const MoeOptions& options);

}  // namespace tandem::train
