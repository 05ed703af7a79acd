// train/cuda/kda_prepare.cu: the terms of each chunk, one block a chunk and head.
#include "train/cuda/kda_chunk.cuh"
#include "train/cuda/launch.cuh"

namespace tandem::train::cuda {
namespace {

// Pairs (i ≥ j) of every diagonal block: products of q and of k with k, exponentials by pair.
template <int D>
__device__ void diagonal_blocks(const float* q, const float* k, const float* p, float* attention, float* pairs) {
  constexpr int kStride = ChunkShape<D>::kStride;
  constexpr int kPairs = kBlock * (kBlock + 1) / 2;
  for (int e = static_cast<int>(threadIdx.x); e < kBlocks * kPairs; e += kChunkThreads) {
    int i = 0, j = e % kPairs;  // rows of a triangle, one longer each
    while (j > i) j -= ++i;
    i += e / kPairs * kBlock;
    j += e / kPairs * kBlock;
    float with_q = 0.f, with_k = 0.f;
    for (int c = 0; c < D; c += 4) {
      float qi[4], ki[4], pi[4], kj[4], pj[4];
      load4(q + i * kStride + c, qi);
      load4(k + i * kStride + c, ki);
      load4(p + i * kStride + c, pi);
      load4(k + j * kStride + c, kj);
      load4(p + j * kStride + c, pj);
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const float decayed = kj[x] * expf(pi[x] - pj[x]);
        with_q += qi[x] * decayed;
        with_k += ki[x] * decayed;
      }
    }
    attention[i * kSquareStride + j] = with_q;
    pairs[i * kSquareStride + j] = with_k;
  }
}

// q → exp(p) q, k → exp(p) k, p → exp(total − p) k; the terms of rows go out on the way.
template <int D, class T>
__device__ void decay_rows(const KdaRows& rows, const KdaTerms& terms, const ChunkPlace& place, float* q, float* k,
                           float* p, const float* totals) {
  constexpr int kStride = ChunkShape<D>::kStride;
  const int64_t out = static_cast<int64_t>(blockIdx.x) * kC * D;
  for (int e = static_cast<int>(threadIdx.x); e < kC * D / 4; e += kChunkThreads) {
    const int i = e / (D / 4), c = e % (D / 4) * 4, block = i / kBlock;
    float a[4], b[4], d[4], query[4], key[4], to_end[4], value[4] = {};
    load4(q + i * kStride + c, a);
    load4(k + i * kStride + c, b);
    load4(p + i * kStride + c, d);
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const float here = expf(d[x]), behind = expf(totals[block * D + c + x] - d[x]);
      const float before = decay_over<D>(totals, 0, block, c + x);
      const float after = decay_over<D>(totals, block + 1, kBlocks, c + x);
      d[x] = b[x] * behind;
      a[x] *= here;
      b[x] *= here;
      query[x] = rows.scale * before * a[x];
      key[x] = before * b[x];
      to_end[x] = after * d[x];
    }
    store4(q + i * kStride + c, a);
    store4(k + i * kStride + c, b);
    store4(p + i * kStride + c, d);
    const int64_t row = rows.chunk_rows[place.chunk * kC + i];
    if (row < rows.rows) load4(static_cast<const T*>(rows.v) + (row * rows.heads + place.head) * D + c, value);
    const int64_t to = out + static_cast<int64_t>(i) * D + c;
    store4(terms.query + to, query);
    store4(terms.key + to, key);
    store4(terms.key_to_end + to, to_end);
    store4(terms.value + to, value);
  }
  for (int c = static_cast<int>(threadIdx.x); c < D; c += kChunkThreads) {
    terms.decay[static_cast<int64_t>(blockIdx.x) * D + c] = decay_over<D>(totals, 0, kBlocks, c);
  }
}

// between[a][b][D] for a − b ≥ 2, in the order of kBetween.
__device__ inline int between_index(int a, int b) { return a - b == 3 ? 2 : b; }

template <int D>
__device__ void off_diagonal_blocks(const float* q, const float* k, const float* to_block_end, const float* between,
                                    float* attention, float* pairs) {
  constexpr int kStride = ChunkShape<D>::kStride;
  const int i_in = static_cast<int>(threadIdx.x) / kBlock, j_in = static_cast<int>(threadIdx.x) % kBlock;
  static_assert(kChunkThreads == kBlock * kBlock);
  for (int a = 1; a < kBlocks; ++a) {
    for (int b = 0; b < a; ++b) {
      const int i = a * kBlock + i_in, j = b * kBlock + j_in;
      const float* factor = between + between_index(a, b) * D;
      float with_q = 0.f, with_k = 0.f;
      for (int c = 0; c < D; c += 4) {
        float qi[4], ki[4], kj[4], f[4] = {1.f, 1.f, 1.f, 1.f};
        load4(q + i * kStride + c, qi);
        load4(k + i * kStride + c, ki);
        load4(to_block_end + j * kStride + c, kj);
        if (a - b > 1) load4(factor + c, f);
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const float decayed = kj[x] * f[x];
          with_q += qi[x] * decayed;
          with_k += ki[x] * decayed;
        }
      }
      attention[i * kSquareStride + j] = with_q;
      pairs[i * kSquareStride + j] = with_k;
    }
  }
}

// (I + Diag(β) pairs)⁻¹ of the strictly lower pairs: diagonal blocks by substitution, then pairs of inverses merged:
// X21 = −X22 L21 X11. Both squares are [kC][kSquareStride]; `scratch` has kC · kC / 4 floats.
__device__ void invert(const float* pairs, const float* beta, float* inverse, float* scratch) {
  for (int e = static_cast<int>(threadIdx.x); e < kC * kSquareStride; e += kChunkThreads) inverse[e] = 0.f;
  __syncthreads();  // zeros lie where no block is written
  if (threadIdx.x < kC) {
    const int first = static_cast<int>(threadIdx.x) / kBlock * kBlock, column = static_cast<int>(threadIdx.x) % kBlock;
    float x[kBlock];
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      float sum = 0.f;
#pragma unroll
      for (int j = 0; j < i; ++j) sum += pairs[(first + i) * kSquareStride + first + j] * x[j];
      x[i] = (i == column ? 1.f : 0.f) - beta[first + i] * sum;
      inverse[(first + i) * kSquareStride + first + column] = x[i];
    }
  }
  __syncthreads();  // the diagonal blocks are inverted
  for (int n = kBlock; n < kC; n *= 2) {
    const int elements = kC / (2 * n) * n * n;
    for (int e = static_cast<int>(threadIdx.x); e < elements; e += kChunkThreads) {
      const int first = e / (n * n) * 2 * n, i = e % (n * n) / n, j = e % n;
      float sum = 0.f;
      for (int m = j; m < n; ++m) {
        sum += pairs[(first + n + i) * kSquareStride + first + m] * inverse[(first + m) * kSquareStride + first + j];
      }
      scratch[e] = beta[first + n + i] * sum;
    }
    __syncthreads();  // L21 X11 is complete
    for (int e = static_cast<int>(threadIdx.x); e < elements; e += kChunkThreads) {
      const int first = e / (n * n) * 2 * n, i = e % (n * n) / n, j = e % n;
      float sum = 0.f;
      for (int m = 0; m <= i; ++m) {
        sum += inverse[(first + n + i) * kSquareStride + first + n + m] * scratch[e / (n * n) * n * n + m * n + j];
      }
      inverse[(first + n + i) * kSquareStride + first + j] = -sum;
    }
    __syncthreads();  // the next merge reads this one
  }
}

template <int D, class T>
__global__ void __launch_bounds__(kChunkThreads) prepare_kernel(KdaRows rows, KdaTerms terms) {
  using Shape = ChunkShape<D>;
  float* q = reinterpret_cast<float*>(shared_memory());
  float* k = q + Shape::kRowsFloats;
  float* p = k + Shape::kRowsFloats;
  float* attention = p + Shape::kRowsFloats;
  float* pairs = attention + Shape::kSquareFloats;
  float* totals = pairs + Shape::kSquareFloats;
  float* between = totals + kBlocks * D;
  float* beta = between + 3 * D;
  const ChunkPlace place(rows.heads);
  if (threadIdx.x < kC) {
    const int64_t row = rows.chunk_rows[place.chunk * kC + static_cast<int>(threadIdx.x)];
    beta[threadIdx.x] = row < rows.rows ? rows.beta[row * rows.heads + place.head] : 0.f;
  }
  load_chunk<D, T>(rows, place, q, k, p, totals);
  for (int c = static_cast<int>(threadIdx.x); c < D; c += kChunkThreads) {
    between[c] = decay_over<D>(totals, 1, 2, c);          // blocks 2 and 0
    between[D + c] = decay_over<D>(totals, 2, 3, c);      // 3 and 1
    between[2 * D + c] = decay_over<D>(totals, 1, 3, c);  // 3 and 0
  }
  diagonal_blocks<D>(q, k, p, attention, pairs);
  __syncthreads();  // q, k and p are about to change
  decay_rows<D, T>(rows, terms, place, q, k, p, totals);
  __syncthreads();  // they have
  off_diagonal_blocks<D>(q, k, p, between, attention, pairs);
  __syncthreads();  // both squares are complete; q and k are free
  float* inverse = q;
  static_assert(Shape::kRowsFloats >= Shape::kSquareFloats);
  invert(pairs, beta, inverse, k);
  const int64_t out = static_cast<int64_t>(blockIdx.x) * kC * kC;
  for (int e = static_cast<int>(threadIdx.x); e < kC * kC / 4; e += kChunkThreads) {
    const int i = e / (kC / 4), j = e % (kC / 4) * 4;
    float m[4], t[4];
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      m[x] = j + x <= i ? rows.scale * attention[i * kSquareStride + j + x] : 0.f;
      t[x] = inverse[i * kSquareStride + j + x] * beta[j + x];
    }
    store4(terms.attention + out + i * kC + j, m);
    store4(terms.solve + out + i * kC + j, t);
  }
}

template <int D, class T>
int prepare(const KdaRows& rows, const KdaTerms& terms, Stream stream) {
  using Shape = ChunkShape<D>;
  constexpr size_t kFloats = 3 * Shape::kRowsFloats + 2 * Shape::kSquareFloats + (kBlocks + 3) * D + kC;
  return launch(prepare_kernel<D, T>, dim3(static_cast<unsigned>(rows.chunks * rows.heads)), kChunkThreads,
                kFloats * sizeof(float), stream, rows, terms);
}

}  // namespace

int kda_prepare(const KdaRows& rows, const KdaTerms& terms, Stream stream) {
  if (rows.type == Element::kFloat) {
    return rows.dim == 64 ? prepare<64, float>(rows, terms, stream) : prepare<128, float>(rows, terms, stream);
  }
  return rows.dim == 64 ? prepare<64, Bfloat16>(rows, terms, stream) : prepare<128, Bfloat16>(rows, terms, stream);
}

}  // namespace tandem::train::cuda
