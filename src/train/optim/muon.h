// train/optim/muon.h: the orthogonalised direction of Muon, and which blocks of a parameter get one of their own.
//
//   X = u / ‖u‖_F, then 5 times A = X Xᵀ, X ← aX + (bA + cA²)X with (a, b, c) = (3.4445, −4.7750, 2.0315), on the
//   shorter side: every singular value that is not tiny ends between 0.68 and 1.13.
//   Per-Head Muon: query, key and value projections are orthogonalised head by head; kv_b_proj's keys and values apart.
//   Routed experts one by one. All other matrices whole.
//   Source: Jordan et al., Muon; Moonlight (scale); Kimi K3 report (heads); systems.md §9.2.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "config/model_config.h"
#include "weights/tensor_names.h"

namespace tandem::train {

inline constexpr int kNewtonSchulzSteps = 5;

// Matrices [n, rows, cols], each on its own; computed in float (double stays double).
at::Tensor orthogonalize(const at::Tensor& matrices, int steps = kNewtonSchulzSteps);

// Whether Muon updates this parameter; AdamW has norms, biases, gates' vectors, pseudo-queries, conv taps, embedding
// and head.
bool is_muon_role(TensorRole role);

// Views [n, rows, cols] that together cover a parameter of a Muon role (or its gradient, or its momentum).
std::vector<at::Tensor> muon_blocks(const ModelConfig& config, TensorRole role, const at::Tensor& parameter);

}  // namespace tandem::train
