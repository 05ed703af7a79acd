// train/modules/kda.h: the Kimi Delta Attention layer with gradients; its recurrence: train/modules/kda_chunk.h.
//   Source: model.md §3.4.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "config/model_config.h"
#include "train/modules/kda_chunk.h"
#include "train/modules/layer_parameters.h"
#include "train/modules/sequence_layout.h"

namespace tandem::train {

inline constexpr double kKdaL2NormEps = 1e-6;  // added to the sum of squares

// silu(Σ_j w[c][j] · x[t − W + 1 + j][c]) within each document; x [T, P], weight [P, 1, W]. With a norm_dim above 0
// each run of norm_dim channels is L2-normalised then.
at::Tensor short_conv(const at::Tensor& x, const at::Tensor& weight, const SequenceLayout& layout,
                      int64_t norm_dim = 0);

// Log decay [T, H, K] ≤ 0 from z [T, H, K] (before dt_bias), a_log [H], dt_bias [H·K]: lb σ(A z), or −A softplus(z).
at::Tensor kda_gate(const at::Tensor& z, const at::Tensor& a_log, const at::Tensor& dt_bias,
                    std::optional<double> lower_bound);

// x [T, D] normalised → [T, D].
at::Tensor kda_layer(const ModelConfig& config, const LayerParameters& weights, const at::Tensor& x,
                     const SequenceLayout& layout);

}  // namespace tandem::train
