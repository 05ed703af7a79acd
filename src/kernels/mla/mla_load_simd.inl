// kernels/mla/mla_load_simd.inl: how the MLA kernels read what is stored: a weight row and a cached latent widened to
// f32. Included by their `_simd.inl` files.
#pragma once

#include "kernels/mla/mla.h"
#include "kernels/simd/rows.h"
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

// dst[c][r] = src[r][c]; r < rows
TANDEM_INLINE void transpose(const float* src, int64_t src_row, int64_t rows, int64_t cols, float* dst,
                             int64_t dst_row) {
  using Four = float __attribute__((vector_size(16), aligned(4), may_alias));
  const auto at = [](const float* p) TANDEM_INLINE_LAMBDA { return *reinterpret_cast<const Four*>(p); };
  const auto put = [](float* p, Four x) TANDEM_INLINE_LAMBDA { *reinterpret_cast<Four*>(p) = x; };
  int64_t c = 0;
  for (; c + 4 <= cols; c += 4) {
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
      const float* block = src + r * src_row + c;
      const Four x[4] = {at(block), at(block + src_row), at(block + 2 * src_row), at(block + 3 * src_row)};
      const Four low01 = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
      const Four low23 = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
      const Four high01 = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
      const Four high23 = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
      float* out = dst + c * dst_row + r;
      put(out, __builtin_shufflevector(low01, low23, 0, 1, 4, 5));
      put(out + dst_row, __builtin_shufflevector(low01, low23, 2, 3, 6, 7));
      put(out + 2 * dst_row, __builtin_shufflevector(high01, high23, 0, 1, 4, 5));
      put(out + 3 * dst_row, __builtin_shufflevector(high01, high23, 2, 3, 6, 7));
    }
    for (; r < rows; ++r) {
      for (int64_t i = c; i < c + 4; ++i) dst[i * dst_row + r] = src[r * src_row + i];
    }
  }
  for (; c < cols; ++c) {
    for (int64_t r = 0; r < rows; ++r) dst[c * dst_row + r] = src[r * src_row + c];
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
