// train/modules/functional.h: the small operators of the text model as differentiable functions.
//
//   Types: whatever the inputs have. Double stays double (gradient checks); bfloat16 inputs are widened to float inside
//   norms, softmax and losses, and the result has the type of the input. Weights may be kept in a wider type than the
//   activations: project() casts them.
//   Source: model.md §3.2, §3.3.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace tandem::train {

// Float for the 16-bit types, else x itself.
at::Tensor widen(const at::Tensor& x);

// y = x Wᵀ; W [out, in].
at::Tensor project(const at::Tensor& x, const at::Tensor& weight);

// w ⊙ x · rsqrt(mean(x²) + eps) over the last axis.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
// rms_norm(x) ⊙ σ(gate).
at::Tensor rms_norm_gated(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps);
// x · rsqrt(Σ x² + eps) over the last axis.
at::Tensor l2_norm(const at::Tensor& x, double eps);

// Σ_i π_i s_i with π = softmax_i(Σ_d rms(s_i)[d] · (norm ⊙ proj)[d]); sources [T, D] each, norm [D], proj [1, D].
// Keeps nothing of size [T, D] for the backward pass but the sources themselves.
at::Tensor attn_res_mix(const std::vector<at::Tensor>& sources, const at::Tensor& norm, const at::Tensor& proj,
                        double eps);

// Σ mask · −log softmax(logits)[target] / Σ mask, and 0 where the mask is all zero. logits [T, vocab], target [T]
// int64 (any valid id where the mask is 0), mask [T] of weights.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, const at::Tensor& mask);

}  // namespace tandem::train
