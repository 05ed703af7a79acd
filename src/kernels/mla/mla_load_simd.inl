// kernels/mla/mla_load_simd.inl: how the MLA kernels read what is stored: a weight row and a cached latent widened to
// f32. Included by their `_simd.inl` files.
#pragma once

#include "kernels/mla/mla.h"
#include "kernels/simd/scratch.h"
#include "kernels/simd/tile_matmul.inl"
#include "kernels/simd/vec_math.h"
#include "kernels/simd/weight_rows.h"

namespace tandem {
namespace {

// Elements [index, index + kLanes) of what is stored at base, or the n of a tail.
template <WeightFormat F>
TANDEM_INLINE Vec load_stored(const void* base, int64_t index) {
  return simd::load_weight<F>(static_cast<const char*>(base), index, simd::FullBlock{});
}
template <WeightFormat F>
TANDEM_INLINE Vec load_stored_partial(const void* base, int64_t index, int64_t n) {
  return simd::load_weight<F>(static_cast<const char*>(base), index, simd::TailBlock{n});
}

// out[0, n) = the stored elements from `index`.
template <WeightFormat F>
TANDEM_INLINE void widen_as(const void* base, int64_t index, int64_t n, float* out) {
  simd::widen_columns<F>(static_cast<const char*>(base), nullptr, index, n, out);
}
TANDEM_INLINE void widen(WeightFormat format, const void* base, int64_t index, int64_t n, float* out) {
  switch (format) {
    case WeightFormat::kF32: widen_as<WeightFormat::kF32>(base, index, n, out); return;
    case WeightFormat::kF16: widen_as<WeightFormat::kF16>(base, index, n, out); return;
    case WeightFormat::kBF16: widen_as<WeightFormat::kBF16>(base, index, n, out); return;
    case WeightFormat::kInt8:
    case WeightFormat::kMxfp4: return;  // refused by mla.cpp
  }
}

struct MlaShape {
  int64_t heads, rank, nope, rope, v;
  int64_t width() const { return rank + rope; }  // of a cached row
};

TANDEM_INLINE MlaShape mla_shape(const MlaArgs& args) {
  return {args.q.shape[1], args.kv_lora_rank, args.qk_nope_head_dim, args.qk_rope_head_dim, args.v_head_dim};
}

struct PageTable {
  const std::byte* const* pages;
  int64_t page_tokens;
  int64_t row_bytes;
  WeightFormat format;

  TANDEM_INLINE const void* row(int64_t token) const {
    return pages[token / page_tokens] + token % page_tokens * row_bytes;
  }
};

TANDEM_INLINE PageTable page_table(const LatentPages& latents, int64_t width) {
  const bool wide = latents.dtype == DType::kF32;
  return {latents.pages.data(), latents.page_tokens, width * (wide ? 4 : 2),
          wide ? WeightFormat::kF32 : WeightFormat::kBF16};
}

}  // namespace
}  // namespace tandem
