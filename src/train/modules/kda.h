// train/modules/kda.h: Kimi Delta Attention with gradients, in chunk-parallel form.
//
//   Per head and chunk of C rows, G the running sum of g inside the chunk, S the state before it:
//     L_ij = β_i Σ_c k_i k_j exp(G_i − G_j), j < i        (I + L) [u | w] = β [v | exp(G) k]
//     U = u − w S        o_i = s (exp(G_i) q_i)ᵀ S + s Σ_{j≤i} M_ij U_j,  M as L with q_i for β_i k_i
//     S' = Diag(exp(G_C)) S + Σ_j exp(G_C − G_j) k_j U_jᵀ
//   All but the last line is one batched matmul over every chunk of the batch; the last is a loop over chunk numbers.
//   Decays: a block of 2n rows is two blocks of n and the product of the upper rows, decayed from the middle, with the
//   lower rows, decayed to the middle. Both factors are at most 1, so nothing overflows for any gate. With a bounded
//   gate (g ≥ −5) the recursion starts at 16 rows, where factors around the middle row stay within exp(±40); else at 1.
//   Triangular systems are solved by substitution. One state a chunk is kept for the backward pass.
//   Source: Kimi Linear report (chunk form, WY representation); model.md §3.4, §4.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "config/model_config.h"
#include "train/modules/layer_parameters.h"
#include "train/modules/sequence_layout.h"

namespace tandem::train {

// silu(Σ_j w[c][j] · x[t − W + 1 + j][c]) within each document; x [T, P], weight [P, 1, W].
at::Tensor short_conv(const at::Tensor& x, const at::Tensor& weight, const SequenceLayout& layout);

// Log decay [T, H, K] ≤ 0 from z [T, H, K] (before dt_bias), a_log [H], dt_bias [H·K]: lb σ(A z), or −A softplus(z).
at::Tensor kda_gate(const at::Tensor& z, const at::Tensor& a_log, const at::Tensor& dt_bias,
                    std::optional<double> lower_bound);

struct KdaInputs {
  at::Tensor q, k;           // [T, H, K] L2-normalised
  at::Tensor v;              // [T, H, V]
  at::Tensor g;              // [T, H, K] log decay, float or double; the computation has its type
  at::Tensor beta;           // [T, H] after the sigmoid
  double scale = 1.0;        // of q
  bool bounded = false;      // g ≥ −5 everywhere
  at::Tensor initial_state;  // [N, H, K, V], or undefined: zeros
};
struct KdaOutputs {
  at::Tensor out;    // [T, H, V]
  at::Tensor state;  // [N, H, K, V] after each document
};
KdaOutputs kda_chunked(const KdaInputs& inputs, const SequenceLayout& layout);

// x [T, D] normalised → [T, D].
at::Tensor kda_layer(const ModelConfig& config, const LayerParameters& weights, const at::Tensor& x,
                     const SequenceLayout& layout);

}  // namespace tandem::train
