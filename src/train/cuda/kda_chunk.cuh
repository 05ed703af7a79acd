// train/cuda/kda_chunk.cuh: a chunk of one head in shared memory.
//
//   Decays are kept by blocks of 16 rows: p_i is the sum of g from the first row of i's block up to i, total_b the sum
//   over block b. Rows i of block a and j of block b < a then have
//     exp(G_i − G_j) = exp(p_i) · exp(Σ_{b<c<a} total_c) · exp(total_b − p_j),
//   three factors ≤ 1 whose exponents come from few terms; within a block it is exp(p_i − p_j).
//   Source: Kimi Linear report (chunk form, secondary chunking); model.md §4.
#pragma once

#include "train/cuda/device_math.cuh"
#include "train/cuda/kda_kernels.h"

namespace tandem::train::cuda {

inline constexpr int kC = kKdaChunk;
inline constexpr int kBlock = 16;
inline constexpr int kBlocks = kC / kBlock;
inline constexpr int kChunkThreads = 256;
inline constexpr int kPad = 4;  // floats behind each row: neighbouring rows begin in other banks
inline constexpr int kSquareStride = kC + kPad;

// exp of it is 0 in float. Anything lower decays as much, and would only cost its neighbours digits in the sums.
inline constexpr float kLeastDecay = -104.f;

template <int D>
struct ChunkShape {
  static constexpr int kStride = D + kPad;
  static constexpr int kRowsFloats = kC * kStride;
  static constexpr int kSquareFloats = kC * kSquareStride;
};

// Where a block works: one chunk of one head.
struct ChunkPlace {
  int64_t chunk;
  int head;
  __device__ explicit ChunkPlace(int heads)
      : chunk(static_cast<int64_t>(blockIdx.x) / heads), head(static_cast<int>(blockIdx.x % heads)) {}
};

// q, k and p into shared memory, totals [kBlocks][D].
template <int D, class T>
__device__ void load_chunk(const KdaRows& rows, const ChunkPlace& place, float* q, float* k, float* p, float* totals) {
  constexpr int kStride = ChunkShape<D>::kStride;
  for (int e = static_cast<int>(threadIdx.x); e < kC * D / 4; e += kChunkThreads) {
    const int i = e / (D / 4), c = e % (D / 4) * 4;
    const int64_t row = rows.chunk_rows[place.chunk * kC + i];
    float a[4] = {}, b[4] = {}, d[4] = {};
    if (row < rows.rows) {
      const int64_t from = (row * rows.heads + place.head) * D + c;
      load4(static_cast<const T*>(rows.q) + from, a);
      load4(static_cast<const T*>(rows.k) + from, b);
      load4(rows.g + from, d);
    }
#pragma unroll
    for (int x = 0; x < 4; ++x) d[x] = fmaxf(d[x], kLeastDecay);
    store4(q + i * kStride + c, a);
    store4(k + i * kStride + c, b);
    store4(p + i * kStride + c, d);
  }
  __syncthreads();  // g is there, to be summed by columns
  for (int e = static_cast<int>(threadIdx.x); e < kBlocks * D; e += kChunkThreads) {
    const int block = e / D, c = e % D;
    float sum = 0.f;
    for (int i = 0; i < kBlock; ++i) {
      float* at = p + (block * kBlock + i) * kStride + c;
      sum += *at;
      *at = sum;
    }
    totals[e] = sum;
  }
  __syncthreads();  // p and totals are complete
}

// exp of the sum of totals over blocks [first, last).
template <int D>
__device__ float decay_over(const float* totals, int first, int last, int c) {
  float sum = 0.f;
  for (int b = first; b < last; ++b) sum += totals[b * D + c];
  return expf(sum);
}

}  // namespace tandem::train::cuda
