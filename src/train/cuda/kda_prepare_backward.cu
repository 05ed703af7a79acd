// train/cuda/kda_prepare_backward.cu: from the gradients of a chunk's terms to those of q, k and g.
//
//   With A = s d(s M) and B = dP, lower triangles, for every channel:
//     row_q_i = Σ_{j≤i} A_ij k_j exp(G_i − G_j)      row_k_i = Σ_{j<i} B_ij k_j exp(G_i − G_j)
//     col_j   = Σ_{i≥j} A_ij q_i exp(G_i − G_j) + Σ_{i>j} B_ij k_i exp(G_i − G_j)
//   Every term is (row) x (something) exp(G …), so that its part in dG is x times its part in dx: with dq and the two
//   parts of dk, dG = q dq + k dk_row − k dk_col, and g_m has the sum of dG over the rows from m on. What ends in
//   exp(G_C) adds to the last row.
//   A thread has four channels of kRows neighbouring rows of one block.
#include "train/cuda/kda_chunk.cuh"
#include "train/cuda/launch.cuh"

namespace tandem::train::cuda {
namespace {

template <int D>
struct Tile {
  static constexpr int kRows = kC * D / 4 / kChunkThreads;
  static_assert(kBlock % kRows == 0);
  int first, channel;
  __device__ Tile()
      : first(static_cast<int>(threadIdx.x) / (D / 4) * kRows), channel(static_cast<int>(threadIdx.x) % (D / 4) * 4) {}
};

template <int D>
struct Sums {
  float row_q[Tile<D>::kRows][4] = {}, row_k[Tile<D>::kRows][4] = {}, column[Tile<D>::kRows][4] = {};
};

// Pairs inside the tile's own block, with the q, k and p of load_chunk().
template <int D>
__device__ void same_block(const Tile<D>& tile, const float* q, const float* k, const float* p, const float* a,
                           const float* b, Sums<D>& sums) {
  constexpr int kStride = ChunkShape<D>::kStride;
  const int block = tile.first / kBlock * kBlock;
#pragma unroll
  for (int r = 0; r < Tile<D>::kRows; ++r) {
    const int own = tile.first + r;
    float p_own[4];
    load4(p + own * kStride + tile.channel, p_own);
    for (int other = block; other < block + kBlock; ++other) {
      float p_other[4], k_other[4], q_other[4];
      load4(p + other * kStride + tile.channel, p_other);
      load4(k + other * kStride + tile.channel, k_other);
      load4(q + other * kStride + tile.channel, q_other);
      const float a_row = other <= own ? a[own * kSquareStride + other] : 0.f;
      const float b_row = other < own ? b[own * kSquareStride + other] : 0.f;
      const float a_column = other >= own ? a[other * kSquareStride + own] : 0.f;
      const float b_column = other > own ? b[other * kSquareStride + own] : 0.f;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float decay = expf(-fabsf(p_own[c] - p_other[c]));  // p falls: the later row's is the smaller
        sums.row_q[r][c] += a_row * k_other[c] * decay;
        sums.row_k[r][c] += b_row * k_other[c] * decay;
        sums.column[r][c] += (a_column * q_other[c] + b_column * k_other[c]) * decay;
      }
    }
  }
}

// Pairs with other blocks: q and k hold exp(p) q and exp(p) k, `to_end` holds exp(total − p) k.
template <int D>
__device__ void other_blocks(const Tile<D>& tile, const float* q, const float* k, const float* to_end, const float* p,
                             const float* totals, const float* a, const float* b, Sums<D>& sums) {
  constexpr int kStride = ChunkShape<D>::kStride;
  constexpr int kRows = Tile<D>::kRows;
  const int own = tile.first / kBlock;
  float row_q[kRows][4] = {}, row_k[kRows][4] = {}, column[kRows][4] = {};
  for (int block = 0; block < kBlocks; ++block) {
    if (block == own) continue;
    float factor[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      factor[c] = block < own ? decay_over<D>(totals, block + 1, own, tile.channel + c)
                              : decay_over<D>(totals, own + 1, block, tile.channel + c);
    }
    for (int other = block * kBlock; other < (block + 1) * kBlock; ++other) {
      if (block < own) {
        float value[4];
        load4(to_end + other * kStride + tile.channel, value);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const float a_row = a[(tile.first + r) * kSquareStride + other];
          const float b_row = b[(tile.first + r) * kSquareStride + other];
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            row_q[r][c] += a_row * value[c] * factor[c];
            row_k[r][c] += b_row * value[c] * factor[c];
          }
        }
      } else {
        float of_q[4], of_k[4];
        load4(q + other * kStride + tile.channel, of_q);
        load4(k + other * kStride + tile.channel, of_k);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const float a_column = a[other * kSquareStride + tile.first + r];
          const float b_column = b[other * kSquareStride + tile.first + r];
#pragma unroll
          for (int c = 0; c < 4; ++c) column[r][c] += (a_column * of_q[c] + b_column * of_k[c]) * factor[c];
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float here[4];
    load4(p + (tile.first + r) * kStride + tile.channel, here);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float from_start = expf(here[c]), to_stop = expf(totals[own * D + tile.channel + c] - here[c]);
      sums.row_q[r][c] += row_q[r][c] * from_start;
      sums.row_k[r][c] += row_k[r][c] * from_start;
      sums.column[r][c] += column[r][c] * to_stop;
    }
  }
}

// dq and dk of the tile's rows to memory; dG and what its rows add to the last row's dG to shared memory.
template <int D, class T>
__device__ void finish_rows(const KdaRows& rows, const KdaTermGradients& gradients, const ChunkPlace& place,
                            const Tile<D>& tile, const float* p, const float* totals, const Sums<D>& sums, float* dg,
                            float* to_last) {
  constexpr int kStride = ChunkShape<D>::kStride;
  const int block = tile.first / kBlock;
  float before[4], after[4], last[4] = {};
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    before[c] = decay_over<D>(totals, 0, block, tile.channel + c);
    after[c] = decay_over<D>(totals, block + 1, kBlocks, tile.channel + c);
  }
#pragma unroll
  for (int r = 0; r < Tile<D>::kRows; ++r) {
    const int i = tile.first + r;
    const int64_t row = rows.chunk_rows[place.chunk * kC + i];
    const bool real = row < rows.rows;
    const int64_t at = (row * rows.heads + place.head) * D + tile.channel;
    const int64_t term = (static_cast<int64_t>(blockIdx.x) * kC + i) * D + tile.channel;
    float q[4] = {}, k[4] = {}, here[4], d_query[4], d_key[4], d_end[4], dq[4], dk[4], d_sum[4];
    if (real) {
      load4(static_cast<const T*>(rows.q) + at, q);
      load4(static_cast<const T*>(rows.k) + at, k);
    }
    load4(p + i * kStride + tile.channel, here);
    load4(gradients.query + term, d_query);
    load4(gradients.key + term, d_key);
    load4(gradients.key_to_end + term, d_end);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float from_start = expf(here[c]) * before[c];
      const float to_stop = expf(totals[block * D + tile.channel + c] - here[c]) * after[c];
      dq[c] = rows.scale * from_start * d_query[c] + sums.row_q[r][c];
      const float as_row = from_start * d_key[c] + sums.row_k[r][c];
      const float ending = to_stop * d_end[c];
      const float as_column = ending + sums.column[r][c];
      dk[c] = as_row + as_column;
      d_sum[c] = q[c] * dq[c] + k[c] * (as_row - as_column);
      last[c] += k[c] * ending;
    }
    if (real) {
      store4(static_cast<T*>(gradients.q) + at, dq);
      store4(static_cast<T*>(gradients.k) + at, dk);
    }
    store4(dg + i * kStride + tile.channel, d_sum);
  }
  store4(to_last + tile.first / Tile<D>::kRows * D + tile.channel, last);
}

// dg_m = Σ_{i ≥ m} dG_i: by blocks, then with the sums of the blocks behind.
template <int D>
__device__ void sum_from_the_end(const KdaRows& rows, const KdaTermGradients& gradients, const ChunkPlace& place,
                                 float* dg, const float* to_last, const float* totals, float* block_sums) {
  constexpr int kStride = ChunkShape<D>::kStride;
  for (int e = static_cast<int>(threadIdx.x); e < kBlocks * D; e += kChunkThreads) {
    const int block = e / D, c = e % D;
    float sum = 0.f;
    if (block == kBlocks - 1) {
      const float decay_gradient = gradients.decay[static_cast<int64_t>(blockIdx.x) * D + c];
      sum = decay_over<D>(totals, 0, kBlocks, c) * decay_gradient;
      for (int t = 0; t < kC / Tile<D>::kRows; ++t) sum += to_last[t * D + c];
    }
    for (int i = kBlock - 1; i >= 0; --i) {
      float* at = dg + (block * kBlock + i) * kStride + c;
      sum += *at;
      *at = sum;
    }
    block_sums[e] = sum;
  }
  __syncthreads();  // the sums of every block are complete
  for (int e = static_cast<int>(threadIdx.x); e < kC * D; e += kChunkThreads) {
    const int i = e / D, c = e % D;
    const int64_t row = rows.chunk_rows[place.chunk * kC + i];
    if (row >= rows.rows) continue;
    float sum = dg[i * kStride + c];
    for (int block = i / kBlock + 1; block < kBlocks; ++block) sum += block_sums[block * D + c];
    gradients.g[(row * rows.heads + place.head) * D + c] = sum;
  }
}

template <int D, class T>
__global__ void __launch_bounds__(kChunkThreads, D == 64 ? 2 : 1)
    backward_kernel(KdaRows rows, KdaTermGradients gradients) {
  using Shape = ChunkShape<D>;
  constexpr int kStride = Shape::kStride;
  float* q = reinterpret_cast<float*>(shared_memory());
  float* k = q + Shape::kRowsFloats;
  float* p = k + Shape::kRowsFloats;
  float* to_end = p + Shape::kRowsFloats;
  float* a = to_end + Shape::kRowsFloats;
  float* b = a + Shape::kSquareFloats;
  float* totals = b + Shape::kSquareFloats;
  const ChunkPlace place(rows.heads);
  const int64_t square = static_cast<int64_t>(blockIdx.x) * kC * kC;
  for (int e = static_cast<int>(threadIdx.x); e < kC * kC / 4; e += kChunkThreads) {
    const int i = e / (kC / 4), j = e % (kC / 4) * 4;
    float of_q[4], of_k[4];
    load4(gradients.attention + square + i * kC + j, of_q);
    load4(gradients.pair + square + i * kC + j, of_k);
#pragma unroll
    for (int x = 0; x < 4; ++x) of_q[x] *= rows.scale;
    store4(a + i * kSquareStride + j, of_q);
    store4(b + i * kSquareStride + j, of_k);
  }
  load_chunk<D, T>(rows, place, q, k, p, totals);  // ends with a barrier: a and b are complete too
  const Tile<D> tile;
  Sums<D> sums;
  same_block<D>(tile, q, k, p, a, b, sums);
  __syncthreads();  // q and k are about to change
  for (int e = static_cast<int>(threadIdx.x); e < kC * D; e += kChunkThreads) {
    const int i = e / D, c = e % D, at = i * kStride + c;
    const float here = expf(p[at]);
    to_end[at] = k[at] * expf(totals[i / kBlock * D + c] - p[at]);
    q[at] *= here;
    k[at] *= here;
  }
  __syncthreads();  // they have
  other_blocks<D>(tile, q, k, to_end, p, totals, a, b, sums);
  __syncthreads();  // q, k, a and b are free
  float* to_last = k;
  static_assert(kC / Tile<D>::kRows * D + kBlocks * D <= Shape::kRowsFloats);
  finish_rows<D, T>(rows, gradients, place, tile, p, totals, sums, q, to_last);
  __syncthreads();  // dG is complete
  sum_from_the_end<D>(rows, gradients, place, q, to_last, totals, to_last + kC / Tile<D>::kRows * D);
}

template <int D, class T>
int backward(const KdaRows& rows, const KdaTermGradients& gradients, Stream stream) {
  using Shape = ChunkShape<D>;
  constexpr size_t kFloats = 4 * Shape::kRowsFloats + 2 * Shape::kSquareFloats + kBlocks * D;
  return launch(backward_kernel<D, T>, dim3(static_cast<unsigned>(rows.chunks * rows.heads)), kChunkThreads,
                kFloats * sizeof(float), stream, rows, gradients);
}

}  // namespace

int kda_prepare_backward(const KdaRows& rows, const KdaTermGradients& gradients, Stream stream) {
  if (rows.type == Element::kFloat) {
    return rows.dim == 64 ? backward<64, float>(rows, gradients, stream)
                          : backward<128, float>(rows, gradients, stream);
  }
  return rows.dim == 64 ? backward<64, Bfloat16>(rows, gradients, stream)
                        : backward<128, Bfloat16>(rows, gradients, stream);
}

}  // namespace tandem::train::cuda
