// kernels/mla/mla_ref_common.h: what both reference forms of mla.h read: one cached row and one head's weights in f32,
// and a row's softmax.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "kernels/mla/mla.h"
#include "tensor/mxfp4.h"

namespace tandem::ref {

// out[width] = cache row of token s, [ c_s | kpe_s ].
inline void read_latent(const LatentPages& latents, int64_t s, int64_t width, float* out) {
  const std::byte* page = latents.pages[static_cast<size_t>(s / latents.page_tokens)];
  const int64_t first = s % latents.page_tokens * width;
  for (int64_t i = 0; i < width; ++i) {
    out[i] = latents.dtype == DType::kF32 ? reinterpret_cast<const float*>(page)[first + i]
                                          : to_f32(reinterpret_cast<const bf16*>(page)[first + i]);
  }
}

// out[nope + v][rank] = the row block of head h.
inline void read_head_weight(const MlaArgs& args, int64_t h, float* out) {
  const int64_t rows = args.qk_nope_head_dim + args.v_head_dim;
  for (int64_t r = 0; r < rows; ++r) {
    weight_row_to_f32(args.kv_b, h * rows + r, {out + r * args.kv_lora_rank, static_cast<size_t>(args.kv_lora_rank)});
  }
}

// Scores of one row to probabilities, in place.
inline void softmax(float* scores, int64_t count) {
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t s = 0; s < count; ++s) largest = std::max(largest, scores[s]);
  float sum = 0.f;
  for (int64_t s = 0; s < count; ++s) {
    scores[s] = std::exp(scores[s] - largest);
    sum += scores[s];
  }
  for (int64_t s = 0; s < count; ++s) scores[s] /= sum;
}

inline float dot(const float* a, const float* b, int64_t count) {
  float sum = 0.f;
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace tandem::ref
