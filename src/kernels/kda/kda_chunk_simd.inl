// kernels/kda/kda_chunk_simd.inl: what a chunk of kda.h needs of q, k, g and beta alone, over Vec: decayed rows and the
// two triangles. Included by kda_chunked_simd.inl.
//
//   A chunk of C rows is cut into blocks of kBlock. A decay between two tokens of different blocks is split at the
//   later block's first row s, and both factors are products of exp(g) in (0, 1]:
//     L_ij / β_i = (k_i ⊙ Π_{m=s..i} exp(g_m)) · (k_j ⊙ Π_{m=j+1..s−1} exp(g_m)),  M_ij with q_i for k_i
//   so that a block's rows against all earlier keys are one small product. Pairs inside a block carry their own running
//   product. After the last block the keys' factors are the rows Γ_C/Γ_j ⊙ k_j of the state's update.
#pragma once

#include "kernels/kda/kda_step_simd.inl"

namespace tandem {
namespace {

constexpr int64_t kC = kKdaChunk;
constexpr int kBlock = 4;                           // rows a block
constexpr int kLeftRows = kLanes == 16 ? 8 : 4;     // rows of a cross tile: k and q rows together, or one of them
constexpr int kPairs = kBlock * (kBlock - 1) / 2;   // (i, j < i) inside a block
constexpr int kPairsAndDiagonal = kPairs + kBlock;  // (i, j ≤ i)
static_assert(kC % kBlock == 0 && kC % kTileRows == 0 && 2 * kBlock % kLeftRows == 0);

// Rows of the [·, stride] blocks are K floats padded with zeros to whole registers; rows past num_rows are zeros.
struct Chunk {
  int64_t row_begin;
  int64_t num_rows;
  float* decayed;  // [2C, stride] Γ_i ⊙ k_i, then Γ_i ⊙ q_i
  float* suffix;   // [C, stride]  Γ_C/Γ_i ⊙ k_i
  float* total;    // [stride]     Γ_C
  float* lower;    // [C, C]       −L below the diagonal, else 0
  float* scores;   // [C, C]       M, 0 above the diagonal
  float* beta;     // [C]
};

// What the preparation of one chunk uses and nobody reads afterwards.
struct ChunkInputs {
  int64_t stride;
  float* decay;   // [C, stride] exp(g_i)
  float* k;       // [C, stride]
  float* q;       // [C, stride]
  float* left;    // [2 kBlock, stride] a block's k_i and q_i, decayed from the block's first row on
  float* prefix;  // [stride] Γ of the row before the block
};

TANDEM_INLINE int64_t chunk_floats(int64_t stride) { return stride * (3 * kC + 1) + 2 * kC * kC + kC; }
TANDEM_INLINE Chunk make_chunk(float* p, int64_t stride) {
  Chunk chunk{};
  chunk.decayed = p;
  chunk.suffix = chunk.decayed + 2 * kC * stride;
  chunk.total = chunk.suffix + kC * stride;
  chunk.lower = chunk.total + stride;
  chunk.scores = chunk.lower + kC * kC;
  chunk.beta = chunk.scores + kC * kC;
  return chunk;
}

TANDEM_INLINE int64_t chunk_input_floats(int64_t stride) { return stride * (3 * kC + 2 * kBlock + 1); }
TANDEM_INLINE ChunkInputs make_chunk_inputs(float* p, int64_t stride) {
  ChunkInputs in{};
  in.stride = stride;
  in.decay = p;
  in.k = in.decay + kC * stride;
  in.q = in.k + kC * stride;
  in.left = in.q + kC * stride;
  in.prefix = in.left + 2 * kBlock * stride;
  return in;
}

// exp(g), k, q and beta of the chunk's rows; past them a decay of 1 and zeros.
void load_inputs(const KdaArgs& args, int64_t h, const ChunkInputs& in, const Chunk& chunk) {
  const int64_t key_dim = args.q.shape[2];
  for (int64_t i = 0; i < kC; ++i) {
    const bool present = i < chunk.num_rows;
    const int64_t t = chunk.row_begin + i;
    chunk.beta[i] = present ? beta_of(args, t, h) : 0.f;
    for (int64_t c = 0; c < in.stride; c += kLanes) {
      const int64_t left = present ? lanes_left(key_dim - c) : 0;
      Vec g = simd::zero(), k = simd::zero(), q = simd::zero();
      if (left == kLanes) {
        g = simd::load(head_row(args.g, t, h) + c);
        k = simd::load(head_row(args.k, t, h) + c);
        q = simd::load(head_row(args.q, t, h) + c);
      } else if (left > 0) {
        g = simd::load_partial(head_row(args.g, t, h) + c, left);
        k = simd::load_partial(head_row(args.k, t, h) + c, left);
        q = simd::load_partial(head_row(args.q, t, h) + c, left);
      }
      simd::store(in.decay + i * in.stride + c, simd::exp(g));
      simd::store(in.k + i * in.stride + c, k);
      simd::store(in.q + i * in.stride + c, q);
    }
  }
  for (int64_t c = 0; c < in.stride; c += kLanes) simd::store(in.prefix + c, simd::broadcast(1.f));
}

// One register of key channels of the block at row s: its decayed rows, its left factors, its keys carried to the
// block's end, and the cells inside the block added to l and m.
TANDEM_INLINE void block_channels(const ChunkInputs& in, const Chunk& chunk, int64_t s, int64_t c, Vec (&l)[kPairs],
                                  Vec (&m)[kPairsAndDiagonal]) {
  const int64_t at = s * in.stride + c;
  const Vec before = simd::load(in.prefix + c);
  Vec running[kBlock];  // k_j · Π_{m=j+1..i} exp(g_m)
  Vec local = simd::broadcast(1.f);
  int pair = 0;
  int cell = 0;
#pragma GCC unroll 4
  for (int i = 0; i < kBlock; ++i) {
    const Vec decay = simd::load(in.decay + at + i * in.stride);
    const Vec k = simd::load(in.k + at + i * in.stride);
    const Vec q = simd::load(in.q + at + i * in.stride);
    local = local * decay;
    const Vec left_k = local * k;
    const Vec left_q = local * q;
    simd::store(in.left + i * in.stride + c, left_k);
    simd::store(in.left + (kBlock + i) * in.stride + c, left_q);
    simd::store(chunk.decayed + at + i * in.stride, before * left_k);
    simd::store(chunk.decayed + kC * in.stride + at + i * in.stride, before * left_q);
#pragma GCC unroll 4
    for (int j = 0; j < i; ++j) {
      running[j] = running[j] * decay;
      l[pair] = simd::fma(k, running[j], l[pair]);
      m[cell] = simd::fma(q, running[j], m[cell]);
      ++pair;
      ++cell;
    }
    running[i] = k;
    m[cell] = simd::fma(q, k, m[cell]);
    ++cell;
  }
  for (int j = 0; j < kBlock; ++j) simd::store(chunk.suffix + at + j * in.stride, running[j]);
  simd::store(chunk.total + c, local);  // the block's own decay, until the last block
  simd::store(in.prefix + c, before * local);
}

TANDEM_INLINE void set_lower(const Chunk& chunk, int64_t i, int64_t j, float product) {
  chunk.lower[i * kC + j] = -(chunk.beta[i] * product);
}

void prepare_block(const ChunkInputs& in, const Chunk& chunk, int64_t s) {
  Vec l[kPairs], m[kPairsAndDiagonal];
  for (Vec& x : l) x = simd::zero();
  for (Vec& x : m) x = simd::zero();
  for (int64_t c = 0; c < in.stride; c += kLanes) block_channels(in, chunk, s, c, l, m);
  int pair = 0;
  int cell = 0;
#pragma GCC unroll 4
  for (int i = 0; i < kBlock; ++i) {
    for (int j = 0; j < i; ++j) set_lower(chunk, s + i, s + j, simd::sum(l[pair++]));
    for (int j = 0; j <= i; ++j) chunk.scores[(s + i) * kC + s + j] = simd::sum(m[cell++]);
  }
}

// The block at row s against the two keys j and j + 1 of earlier blocks, kLeftRows of its rows from `first` of in.left.
[[gnu::noinline]] void cross_tile(const ChunkInputs& in, const Chunk& chunk, int64_t s, int64_t first, int64_t j) {
  Vec acc[2][kLeftRows];
  tile_zero(acc);
  const float* left = in.left + first * in.stride;
  const float* right = chunk.suffix + j * in.stride;
  for (int64_t c = 0; c < in.stride; c += kLanes) {
    const Vec key[2] = {simd::load(right + c), simd::load(right + in.stride + c)};
#pragma GCC unroll 8
    for (int r = 0; r < kLeftRows; ++r) {
      const Vec row = simd::load(left + r * in.stride + c);
      acc[0][r] = simd::fma(row, key[0], acc[0][r]);
      acc[1][r] = simd::fma(row, key[1], acc[1][r]);
    }
  }
  for (int p = 0; p < 2; ++p) {
    for (int r = 0; r < kLeftRows; r += kBlock) {
      const Vec group[4] = {acc[p][r], acc[p][r + 1], acc[p][r + 2], acc[p][r + 3]};
      float sums[kBlock];
      simd::sum4(group, sums);
      const bool keys = first + r < kBlock;
      for (int64_t i = 0; i < kBlock; ++i) {
        if (keys) {
          set_lower(chunk, s + i, j + p, sums[i]);
        } else {
          chunk.scores[(s + i) * kC + j + p] = sums[i];
        }
      }
    }
  }
}

void prepare_chunk(const KdaArgs& args, int64_t h, const ChunkInputs& in, const Chunk& chunk) {
  load_inputs(args, h, in, chunk);
  for (int64_t i = 0; i < 2 * kC * kC; i += kLanes) simd::store(chunk.lower + i, simd::zero());  // scores follow lower
  for (int64_t s = 0; s < kC; s += kBlock) {
    prepare_block(in, chunk, s);
    for (int64_t first = 0; first < 2 * kBlock; first += kLeftRows) {
      for (int64_t j = 0; j < s; j += 2) cross_tile(in, chunk, s, first, j);
    }
    for (int64_t c = 0; c < in.stride; c += kLanes) {
      const Vec decay = simd::load(chunk.total + c);
      for (int64_t j = 0; j < s; ++j) {
        float* key = chunk.suffix + j * in.stride + c;
        simd::store(key, decay * simd::load(key));
      }
    }
  }
  for (int64_t c = 0; c < in.stride; c += kLanes) simd::store(chunk.total + c, simd::load(in.prefix + c));
}

}  // namespace
}  // namespace tandem
