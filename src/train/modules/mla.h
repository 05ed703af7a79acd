// train/modules/mla.h: Gated multi-head latent attention without positions, with gradients.
//
//   Expanded form: latents are projected to keys and values, and every document attends causally to itself. Documents
//   of a bucket are padded at their end, which a causal mask already hides from real rows. Scores are made for a block
//   of queries at a time. Source: model.md §3.5.
#pragma once

#include <ATen/core/Tensor.h>

#include "config/model_config.h"
#include "train/modules/layer_parameters.h"
#include "train/modules/sequence_layout.h"

namespace tandem::train {

// softmax(scale q kᵀ, causal) v within each document; q, k [T, H, K], v [T, H, V] → [T, H, V].
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                            const SequenceLayout& layout);

// x [T, D] normalised → [T, D].
at::Tensor mla_layer(const ModelConfig& config, const LayerParameters& weights, const at::Tensor& x,
                     const SequenceLayout& layout);

}  // namespace tandem::train
