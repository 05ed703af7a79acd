// train/cuda/kernels.h: the trainer's fused kernels by pointer. No torch and no CUDA header in here.
//
//   Memory-bound operators read every input once from device memory and write every output once; sums over rows (the
//   gradients of weights) go to one partial row a block, added up by the caller in a fixed order, so that equal inputs
//   give equal bits. All arithmetic is float; tensors of activations are float or bfloat16, everything else is float.
//   Layout     row-major and contiguous unless a stride is named; data aligned to 16 bytes; extents as each struct
//   says. Errors     every launcher returns the cudaError_t of its launch, 0 when it went well. Threading  any thread;
//   work is queued on `stream`. The mathematics is that of the ATen implementations beside the callers in
//   train/modules, which the tests compare.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace tandem::train::cuda {

using Stream = CUstream_st*;
enum class Element { kFloat, kBfloat16 };

inline constexpr int kMaxSources = 16;
inline constexpr int kMaxRowDim = 8192;  // of attn_res and norms; a multiple of 8

// Blocks that a kernel with partial sums runs with; its partial buffer has so many rows.
int partial_blocks(int64_t rows, int dim);

struct AttnResArgs {
  const void* sources[kMaxSources] = {};  // [rows, dim] each
  int num_sources = 0;
  int64_t rows = 0;
  int dim = 0;
  Element type = Element::kFloat;
  const float* score_weight = nullptr;  // [dim] norm ⊙ pseudo-query
  float eps = 0.f;
};
int attn_res_forward(const AttnResArgs& args, void* out, Stream stream);
struct AttnResGradient {
  const void* out = nullptr;        // [rows, dim]
  void* sources[kMaxSources] = {};  // [rows, dim] each
  float* partial_weight = nullptr;  // [blocks, dim]
  int blocks = 0;                   // partial_blocks(rows, dim)
};
int attn_res_backward(const AttnResArgs& args, const AttnResGradient& gradient, Stream stream);

// y = x · rsqrt(mean(x²) + eps) ⊙ weight, ⊙ σ(gate) where there is a gate.
struct RmsNormArgs {
  const void* x = nullptr;     // [rows, dim], rows `x_stride` elements apart (a multiple of 8)
  const void* gate = nullptr;  // [rows, dim] or null
  const float* weight = nullptr;
  int64_t rows = 0;
  int64_t x_stride = 0;
  int dim = 0;
  Element type = Element::kFloat;
  float eps = 0.f;
};
int rms_norm_forward(const RmsNormArgs& args, void* y, Stream stream);
struct RmsNormGradient {
  const void* y = nullptr;
  void* x = nullptr;     // contiguous
  void* gate = nullptr;  // null without a gate
  float* partial_weight = nullptr;
  int blocks = 0;
};
int rms_norm_backward(const RmsNormArgs& args, const RmsNormGradient& gradient, Stream stream);

inline constexpr int kMaxConvWidth = 4;

// y = silu(Σ_j w[c][j] x[t − W + 1 + j][c]) inside a document, then with norm_dim > 0 each run of norm_dim channels
// times rsqrt(Σ y² + norm_eps).
struct ShortConvArgs {
  const void* x = nullptr;            // [rows, channels], channels a multiple of 4
  const float* taps = nullptr;        // [channels, width], width ≤ kMaxConvWidth
  const int64_t* position = nullptr;  // [rows] of the row in its document
  int64_t rows = 0;
  int channels = 0;
  int width = 0;
  int norm_dim = 0;  // 0, or 4 times a power of two up to 128 that divides channels
  float norm_eps = 0.f;
  Element type = Element::kFloat;
};
int short_conv_forward(const ShortConvArgs& args, void* y, Stream stream);
// Rows of the walker's partial sums: one a tile of rows.
int64_t short_conv_tiles(int64_t rows);
struct ShortConvGradient {
  const void* y = nullptr;
  void* x = nullptr;
  float* partial_taps = nullptr;  // [tiles, channels, width]
};
int short_conv_backward(const ShortConvArgs& args, const ShortConvGradient& gradient, Stream stream);

// g = bound σ(e^a (z + bias)), or −e^a softplus(z + bias); a by head of `head_dim` channels.
struct KdaGateArgs {
  const void* z = nullptr;         // [rows, channels], channels a multiple of 4
  const float* a_log = nullptr;    // [channels / head_dim]
  const float* dt_bias = nullptr;  // [channels]
  int64_t rows = 0;
  int channels = 0;
  int head_dim = 0;
  bool bounded = false;
  float bound = 0.f;
  Element type = Element::kFloat;
};
int kda_gate_forward(const KdaGateArgs& args, float* g, Stream stream);
struct KdaGateGradient {
  const float* g = nullptr;
  void* z = nullptr;
  float* partial_a = nullptr;     // [tiles, channels]: by channel, to be summed over a head
  float* partial_bias = nullptr;  // [tiles, channels]; tiles as short_conv_tiles(rows)
};
int kda_gate_backward(const KdaGateArgs& args, const KdaGateGradient& gradient, Stream stream);

// SiTU: β tanh(a/β) σ(a) · βl tanh(u/βl), or u itself where linear_beta is 0; SwiGLU where beta is 0: a σ(a) u.
struct GatedActArgs {
  const void* gate = nullptr;
  const void* up = nullptr;
  int64_t elements = 0;  // a multiple of 8
  float beta = 0.f;
  float linear_beta = 0.f;
  Element type = Element::kFloat;
};
int gated_act_forward(const GatedActArgs& args, void* out, Stream stream);
int gated_act_backward(const GatedActArgs& args, const void* grad_out, void* grad_gate, void* grad_up, Stream stream);

// out[i] = x[rows[i]], zeros where rows[i] ≥ x_rows. row_bytes a multiple of 16.
int gather_rows(const void* x, int64_t x_rows, const int64_t* rows, int64_t out_rows, int64_t row_bytes, void* out,
                Stream stream);

// Per row the loss log Σ exp − logit[target], and the gradient of Σ weight · loss.
struct CrossEntropyArgs {
  const void* logits = nullptr;  // [rows, vocab]
  const int64_t* target = nullptr;
  int64_t rows = 0;
  int64_t vocab = 0;
  Element type = Element::kFloat;
};
int cross_entropy_forward(const CrossEntropyArgs& args, float* loss, float* log_sum, Stream stream);
int cross_entropy_backward(const CrossEntropyArgs& args, const float* log_sum, const float* row_weight,
                           void* grad_logits, Stream stream);

}  // namespace tandem::train::cuda
