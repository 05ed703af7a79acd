// kernels/mla/mla.h: Multi-head Latent Attention over a cache of latents, without positional encoding.
//
//   cache row s = [ c_s (rank) | kpe_s (rope) ];  kv_b rows of head h = [ W_UK_h (nope) ; W_UV_h (v) ], rank wide
//   expanded   k_h(s) = [ W_UK_h c_s | kpe_s ],  v_h(s) = W_UV_h c_s
//              o_h(t) = Σ_{s ≤ t} softmax_s( scale · q_h(t)·k_h(s) ) v_h(s)
//   absorbed   q̃_h = W_UK_hᵀ q_h[0:nope];  score = scale · ( q̃_h·c_s + q_h[nope:]·kpe_s )
//              m_h = Σ_s P c_s;  o_h = W_UV_h m_h
//   The two are equal in exact arithmetic. Expanded spends on K/V once per call and little a (query, key) pair:
//   prefill. Absorbed reads only the latents and never rebuilds a head's keys: decode.
//   Source: DeepSeek-V2 report (MLA); released modelling code (model.md §3.5). The rope part exists, is shared by
//   the heads, and is never rotated; scale is (nope + rope)^-1/2 in both forms.
//
// Shapes     q [T, H, nope + rope]; kv_b [H·(nope + v), rank]; out [T, H, v]. A segment's rows are the last `num_rows`
//            of its `latents.length` tokens: row i is at position length − num_rows + i and sees positions 0..that.
//            The cache rows of the segment's own tokens are already written.
// Aliasing   out overlaps nothing.
// Numerics   f32 (bf16 latents are widened exactly); a segment's result does not depend on the others. In one form, a
//            row's result does not depend on how the sequence was split into calls (key tiles lie on a grid from
//            position 0).
// Errors     kInvalidArgument on shape mismatch, length < num_rows, too few pages, or kv_b in MXFP4.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/exec_context.h"
#include "tandem/status.h"
#include "tensor/dtype.h"
#include "tensor/view.h"
#include "tensor/weight_view.h"

namespace tandem {

// The latents of one sequence in one layer: pages of `page_tokens` rows of rank + rope elements each.
struct LatentPages {
  std::span<const std::byte* const> pages;
  int64_t page_tokens = 0;
  DType dtype = DType::kF32;  // kF32 or kBF16
  int64_t length = 0;         // tokens written, this step's rows included
};

struct MlaSegment {
  int64_t row_begin = 0;
  int64_t num_rows = 0;
  LatentPages latents;
};

struct MlaArgs {
  TensorView<const float, 3> q;  // [T, H, nope + rope]
  WeightView kv_b;               // [H·(nope + v), rank]
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;
  float scale = 0.f;
  std::span<const MlaSegment> segments;
  TensorView<float, 3> out;  // [T, H, v]
};
Status mla_expanded(const ExecContext& ctx, const MlaArgs& args);
Status mla_absorbed(const ExecContext& ctx, const MlaArgs& args);

}  // namespace tandem
