// kernels/simd/weight_rows.h: read stored weights into registers, in any format.
//
//   MXFP4 unpacks cheapest into even columns and odd columns, so its products run in that order: within each group of
//   32, columns 0, 2, …, 30, then 1, 3, …, 31. Whatever multiplies an MXFP4 row is brought into the same order first
//   (split_even_odd); every path does so, hence one fixed summation order.
#pragma once

#include <cstdint>

#include "kernels/simd/rows.h"
#include "tensor/weight_view.h"

namespace tandem::simd {
namespace {

constexpr int64_t kGroup = 32;  // columns under one MXFP4 scale
constexpr int64_t kGroupBytes = 16;
constexpr int kGroupVecs = static_cast<int>(kGroup) / Vec::kLanes;

TANDEM_INLINE constexpr int64_t row_bytes(WeightFormat format, int64_t cols) {
  if (format == WeightFormat::kMxfp4) return cols / 2;
  if (format == WeightFormat::kInt8) return (cols + kInt8RowAlign - 1) / kInt8RowAlign * kInt8RowAlign;
  return format == WeightFormat::kF32 ? cols * 4 : cols * 2;
}

TANDEM_INLINE float load_scale(const uint8_t* p) {
  float value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}

// Elements [k, k + kLanes) of a row that is not MXFP4, or the n of a tail. kInt8: the codes, not scaled.
template <WeightFormat F>
TANDEM_INLINE Vec load_weight(const char* row, int64_t k, FullBlock) {
  if constexpr (F == WeightFormat::kF32) return load(reinterpret_cast<const float*>(row) + k);
  if constexpr (F == WeightFormat::kF16) return load_f16(row + 2 * k);
  if constexpr (F == WeightFormat::kBF16) return load_bf16(row + 2 * k);
  if constexpr (F == WeightFormat::kInt8) return load_i8(row + k);
}
template <WeightFormat F>
TANDEM_INLINE Vec load_weight(const char* row, int64_t k, TailBlock tail) {
  if constexpr (F == WeightFormat::kF32) return load_partial(reinterpret_cast<const float*>(row) + k, tail.n);
  if constexpr (F == WeightFormat::kF16) return load_f16_partial(row + 2 * k, tail.n);
  if constexpr (F == WeightFormat::kBF16) return load_bf16_partial(row + 2 * k, tail.n);
  if constexpr (F == WeightFormat::kInt8) return load_i8_partial(row + k, tail.n);
}

// Columns [begin, begin + count) of one row as f32. MXFP4: begin and count are multiples of 32, even/odd order.
// Int8: the codes, not scaled.
template <WeightFormat F>
TANDEM_INLINE void widen_columns(const char* row, const uint8_t* scale, int64_t begin, int64_t count, float* out) {
  if constexpr (F == WeightFormat::kMxfp4) {
    for (int64_t k = begin; k < begin + count; k += kGroup) {
      Vec group[kGroupVecs];
      decode_mxfp4_group(reinterpret_cast<const uint8_t*>(row) + k / 2, scale[k / kGroup], group);
      for (int v = 0; v < kGroupVecs; ++v) store(out + (k - begin) + v * Vec::kLanes, group[v]);
    }
  } else {
    for_each_block(count, [&](int64_t i, auto block)
                              TANDEM_INLINE_LAMBDA { store(out + i, load_weight<F>(row, begin + i, block), block); });
  }
}

// x of `count` (a multiple of 32) elements into even/odd order.
TANDEM_INLINE void split_even_odd(const float* x, int64_t count, float* out) {
  for (int64_t group = 0; group < count; group += kGroup) {
    for (int64_t i = 0; i < kGroup / 2; ++i) {
      out[group + i] = x[group + 2 * i];
      out[group + kGroup / 2 + i] = x[group + 2 * i + 1];
    }
  }
}
// and back
TANDEM_INLINE void join_even_odd(const float* x, int64_t count, float* out) {
  for (int64_t group = 0; group < count; group += kGroup) {
    for (int64_t i = 0; i < kGroup / 2; ++i) {
      out[group + 2 * i] = x[group + i];
      out[group + 2 * i + 1] = x[group + kGroup / 2 + i];
    }
  }
}

}  // namespace
}  // namespace tandem::simd
