// train/modules/kernel_calls.h: the fused kernels (train/cuda) on tensors. Callers ask kernels_take() first and fall
// back to ATen where it says no: on the CPU, in double, in builds without CUDA.
//
//   Arguments are of the shapes and types that the functions name, contiguous unless said otherwise; no autograd here.
//   A failed launch throws c10::Error, as LibTorch's own operators do.
//   Threading: any thread; work is queued on the current stream of the tensors' device.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "train/modules/sequence_layout.h"

namespace tandem::train::kernels {

// Whether this build has kernels for the device and type of x: CUDA, float or bfloat16.
bool take(const at::Tensor& x);
// That, and rows of a multiple of `multiple` elements.
bool take_rows(const at::Tensor& x, int64_t multiple);
// Most sources of a mix, widest row of a mix or norm.
int64_t max_sources();
int64_t max_row_dim();

// sources [T, D] of one type, score_weight [D] float → [T, D].
at::Tensor attn_res_forward(const std::vector<at::Tensor>& sources, const at::Tensor& score_weight, double eps);
struct AttnResGradients {
  std::vector<at::Tensor> sources;
  at::Tensor score_weight;
};
AttnResGradients attn_res_backward(const std::vector<at::Tensor>& sources, const at::Tensor& score_weight, double eps,
                                   const at::Tensor& grad_out);

// x […, D], gate of its shape or undefined, weight [D] float.
at::Tensor rms_norm_forward(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps);
struct RmsNormGradients {
  at::Tensor x, gate, weight;
};
RmsNormGradients rms_norm_backward(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps,
                                   const at::Tensor& grad_out);

struct ShortConvShape {
  int64_t norm_dim = 0;
  double norm_eps = 0;
};
bool short_conv_takes(const at::Tensor& x, int64_t width, const ShortConvShape& shape);
// x [T, P], taps [P, W] float, position [T].
at::Tensor short_conv_forward(const at::Tensor& x, const at::Tensor& taps, const at::Tensor& position,
                              const ShortConvShape& shape);
// → dx [T, P], dtaps [P, W].
std::pair<at::Tensor, at::Tensor> short_conv_backward(const at::Tensor& x, const at::Tensor& taps,
                                                      const at::Tensor& position, const ShortConvShape& shape,
                                                      const at::Tensor& grad_out);

// z [T, H, K], a_log [H] and dt_bias [H·K] float → [T, H, K] float. bound: 0 for none.
at::Tensor kda_gate_forward(const at::Tensor& z, const at::Tensor& a_log, const at::Tensor& dt_bias, double bound);
struct KdaGateGradients {
  at::Tensor z, a_log, dt_bias;
};
KdaGateGradients kda_gate_backward(const at::Tensor& z, const at::Tensor& a_log, const at::Tensor& dt_bias,
                                   double bound, const at::Tensor& grad_g);

// linear_beta 0: the second bracket is u; beta 0 as well: SwiGLU. A multiple of 8 elements.
at::Tensor gated_act_forward(const at::Tensor& gate, const at::Tensor& up, double beta, double linear_beta);
std::pair<at::Tensor, at::Tensor> gated_act_backward(const at::Tensor& gate, const at::Tensor& up, double beta,
                                                     double linear_beta, const at::Tensor& grad_out);

// Whether gather() takes x: rows of a multiple of 16 bytes.
bool gather_takes(const at::Tensor& x);
// x [n, …] at rows int64, zeros where rows ≥ n.
at::Tensor gather(const at::Tensor& x, const at::Tensor& rows);

// logits [T, vocab], target [T] → loss [T], log Σ exp [T], both float.
std::pair<at::Tensor, at::Tensor> cross_entropy_forward(const at::Tensor& logits, const at::Tensor& target);
// row_weight [T] float.
at::Tensor cross_entropy_backward(const at::Tensor& logits, const at::Tensor& target, const at::Tensor& log_sum,
                                  const at::Tensor& row_weight);

// What the chunk form of KDA works on and makes; names and shapes: train/cuda/kda_kernels.h.
struct KdaRows {
  at::Tensor q, k, v;  // [T, H, K], one type
  at::Tensor g, beta;  // float
  double scale = 1;
};
struct KdaTerms {
  at::Tensor query, key, key_to_end, value, attention, solve, decay;
};
bool kda_takes(const KdaRows& rows, int64_t chunk_size);
KdaTerms kda_prepare(const KdaRows& rows, const SequenceLayout& layout);
struct KdaTermGradients {
  at::Tensor query, key, key_to_end, attention, pair, decay;
};
struct KdaRowGradients {
  at::Tensor q, k, g;
};
KdaRowGradients kda_prepare_backward(const KdaRows& rows, const SequenceLayout& layout,
                                     const KdaTermGradients& gradients);
// In place: `rows` u → U. Returns the states before each chunk, and behind the last, by rank.
std::pair<at::Tensor, at::Tensor> kda_scan(const KdaTerms& terms, const at::Tensor& weight, const at::Tensor& rows,
                                           const at::Tensor& first, const SequenceLayout& layout);
// In place: `rows` becomes dU. Returns the gradient of the state behind each chunk, and of the first, by rank.
std::pair<at::Tensor, at::Tensor> kda_scan_reverse(const KdaTerms& terms, const at::Tensor& weight,
                                                   const at::Tensor& rows, const at::Tensor& added,
                                                   const at::Tensor& last, const SequenceLayout& layout);

}  // namespace tandem::train::kernels
