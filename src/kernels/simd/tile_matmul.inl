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

// Up to 16 rows of a strided matrix through five pointers: row r is at base + 0, 1, 2, 4 or 8 strides, which are x86
// addressing modes. Left to itself the compiler keeps one pointer a row, runs out of registers, and moves pointers from
// vector registers on the ports of the fma.
struct RowPlace {
  int base;
  int strides;
};
inline constexpr int kBaseRows[5] = {0, 3, 6, 9, 11};
inline constexpr RowPlace kRowPlaces[16] = {{0, 0}, {0, 1}, {0, 2}, {1, 0}, {0, 4}, {1, 2}, {2, 0}, {1, 4},
                                            {0, 8}, {3, 0}, {2, 4}, {4, 0}, {4, 1}, {3, 4}, {2, 8}, {4, 4}};

TANDEM_INLINE void opaque(const char*& p) { asm volatile("" : "+r"(p)); }

// `cols` floats of B's rows are readable (kFull: at least a tile's width).
template <int kRows, bool kFull, int kCols>
TANDEM_INLINE void tile_fma(Vec (&acc)[kRows][kCols], StridedMatrix a, const float* b, int64_t b_row, int64_t depth,
                            int64_t cols) {
  static_assert(kRows <= 16);
  constexpr int kBases = kRows > 11 ? 5 : kRows > 9 ? 4 : kRows > 6 ? 3 : kRows > 3 ? 2 : 1;
  const int64_t stride = a.row * static_cast<int64_t>(sizeof(float));
  const char* base[kBases];
#pragma GCC unroll 5
  for (int i = 0; i < kBases; ++i) base[i] = reinterpret_cast<const char*>(a.data + kBaseRows[i] * a.row);
  for (int64_t k = 0; k < depth; ++k) {
    Vec row[kCols];
    for (int c = 0; c < kCols; ++c) row[c] = load_cols<kFull>(b + k * b_row + c * kLanes, cols - c * kLanes);
#pragma GCC unroll 5
    for (int i = 0; i < kBases; ++i) opaque(base[i]);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const char* element = base[kRowPlaces[r].base] + kRowPlaces[r].strides * stride;
      const Vec value = simd::broadcast(*reinterpret_cast<const float*>(element));
      for (int c = 0; c < kCols; ++c) acc[r][c] = simd::fma(value, row[c], acc[r][c]);
    }
#pragma GCC unroll 5
    for (int i = 0; i < kBases; ++i) base[i] += a.col * static_cast<int64_t>(sizeof(float));
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
