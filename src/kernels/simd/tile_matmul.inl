// kernels/simd/tile_matmul.inl: a register tile of a small matrix product over Vec, shared by the chunked KDA and MLA
// kernels. Included by `_simd.inl` files only.
//
//   acc[r][c] += Σ_k A[r, k] · B[k, c]: A is broadcast element by element, B is read in lanes along its rows. Every
//   output element is one chain of fma in the order of k, whatever the tile it falls in.
#pragma once

#include <cstdint>

#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using simd::Vec;

inline constexpr int kLanes = Vec::kLanes;
inline constexpr int kTileCols = 2;                     // registers across
inline constexpr int kTileRows = kLanes == 16 ? 8 : 4;  // 16 accumulators of 32 registers, or 8 of 16
inline constexpr int kTileWidth = kTileCols * kLanes;   // floats across

TANDEM_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
TANDEM_INLINE int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
TANDEM_INLINE int64_t lanes_left(int64_t n) { return n <= 0 ? 0 : least(n, kLanes); }

// The first `left` lanes at p; kFull promises that there are kLanes of them.
template <bool kFull>
TANDEM_INLINE Vec load_cols(const float* p, int64_t left) {
  if constexpr (kFull) return simd::load(p);
  return simd::load_partial(p, lanes_left(left));
}
template <bool kFull>
TANDEM_INLINE void store_cols(float* p, Vec x, int64_t left) {
  if constexpr (kFull) {
    simd::store(p, x);
  } else {
    simd::store_partial(p, x, lanes_left(left));
  }
}

struct StridedMatrix {  // element (r, k) at data[r · row + k · col]
  const float* data;
  int64_t row;
  int64_t col;
};

// `cols` floats of B's rows are readable (kFull: at least kTileWidth).
template <int kRows, bool kFull>
TANDEM_INLINE void tile_fma(Vec (&acc)[kRows][kTileCols], StridedMatrix a, const float* b, int64_t b_row, int64_t depth,
                            int64_t cols) {
  for (int64_t k = 0; k < depth; ++k) {
    Vec row[kTileCols];
    for (int c = 0; c < kTileCols; ++c) row[c] = load_cols<kFull>(b + k * b_row + c * kLanes, cols - c * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Vec element = simd::broadcast(a.data[r * a.row + k * a.col]);
      for (int c = 0; c < kTileCols; ++c) acc[r][c] = simd::fma(element, row[c], acc[r][c]);
    }
  }
}

template <int kRows, int kCols>
TANDEM_INLINE void tile_zero(Vec (&acc)[kRows][kCols]) {
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kCols; ++c) acc[r][c] = simd::zero();
  }
}

template <bool kFull, int kRows, int kCols>
TANDEM_INLINE void tile_store(const Vec (&acc)[kRows][kCols], float* out, int64_t out_row, int64_t cols) {
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kCols; ++c) store_cols<kFull>(out + r * out_row + c * kLanes, acc[r][c], cols - c * kLanes);
  }
}

}  // namespace
}  // namespace tandem
