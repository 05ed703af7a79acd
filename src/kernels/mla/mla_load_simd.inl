// kernels/mla/mla_load_simd.inl: how the MLA kernels read what is stored: a weight row and a cached latent widened to
// f32. Included by their `_simd.inl` files.
#pragma once

#include "kernels/kda/tile_matmul.inl"
#include "kernels/mla/mla.h"
#include "kernels/simd/scratch.h"
#include "kernels/simd/vec_math.h"

namespace tandem {
namespace {

enum class Stored { kF32, kF16, kBF16 };

TANDEM_INLINE Stored stored_format(WeightFormat format) {
  return format == WeightFormat::kF32 ? Stored::kF32 : format == WeightFormat::kF16 ? Stored::kF16 : Stored::kBF16;
}

template <Stored kFormat>
TANDEM_INLINE Vec load_stored(const void* base, int64_t index) {
  if constexpr (kFormat == Stored::kF32) return simd::load(static_cast<const float*>(base) + index);
  if constexpr (kFormat == Stored::kF16) return simd::load_f16(static_cast<const uint16_t*>(base) + index);
  if constexpr (kFormat == Stored::kBF16) return simd::load_bf16(static_cast<const uint16_t*>(base) + index);
}
template <Stored kFormat>
TANDEM_INLINE Vec load_stored_partial(const void* base, int64_t index, int64_t n) {
  if constexpr (kFormat == Stored::kF32) return simd::load_partial(static_cast<const float*>(base) + index, n);
  if constexpr (kFormat == Stored::kF16) return simd::load_f16_partial(static_cast<const uint16_t*>(base) + index, n);
  if constexpr (kFormat == Stored::kBF16) return simd::load_bf16_partial(static_cast<const uint16_t*>(base) + index, n);
}

// out[0, n) = the stored elements; out has room for n rounded up to whole registers, filled with zeros.
template <Stored kFormat>
TANDEM_INLINE void widen_as(const void* base, int64_t index, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) simd::store(out + i, load_stored<kFormat>(base, index + i));
  if (i < n) simd::store(out + i, load_stored_partial<kFormat>(base, index + i, n - i));
}
TANDEM_INLINE void widen(Stored format, const void* base, int64_t index, int64_t n, float* out) {
  switch (format) {
    case Stored::kF32: widen_as<Stored::kF32>(base, index, n, out); return;
    case Stored::kF16: widen_as<Stored::kF16>(base, index, n, out); return;
    case Stored::kBF16: widen_as<Stored::kBF16>(base, index, n, out); return;
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
  Stored format;

  TANDEM_INLINE const void* row(int64_t token) const {
    return pages[token / page_tokens] + token % page_tokens * row_bytes;
  }
};

TANDEM_INLINE PageTable page_table(const LatentPages& latents, int64_t width) {
  const bool wide = latents.dtype == DType::kF32;
  return {latents.pages.data(), latents.page_tokens, width * (wide ? 4 : 2), wide ? Stored::kF32 : Stored::kBF16};
}

}  // namespace
}  // namespace tandem
