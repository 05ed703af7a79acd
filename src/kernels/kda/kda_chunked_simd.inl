// kernels/kda/kda_chunked_simd.inl: the chunk equations of kda.h over Vec. A task is one head of one segment.
//
//   A chunk first builds, in scratch, everything that depends on q, k and g alone: the decayed rows Γ_i ⊙ k_i and
//   Γ_i ⊙ q_i, the rows Γ_C/Γ_i ⊙ k_i, and the two triangles. Then each block of state columns, which stays in the L1
//   cache, is read once by one stacked product, solved by substitution and updated; columns are independent.
//   All decays are running products of exp(g) in (0, 1].
#include "kernels/backend_entries.h"
#include "kernels/kda/kda_step_simd.inl"

namespace tandem {
namespace {

constexpr int64_t kC = kKdaChunk;
constexpr int kPairs = 4;  // columns of a triangle computed together

// Rows of the [·, stride] blocks are K floats padded with zeros to whole registers.
struct ChunkScratch {
  int64_t stride;
  float* decay;    // [C] exp(g_i)
  float* q;        // [C]
  float* k;        // [C]
  float* running;  // [C] k_j · Π_{m=j+1..i} exp(g_m) while row i of the triangles is computed
  float* decayed;  // [2C] Γ_i ⊙ k_i, then Γ_i ⊙ q_i
  float* suffix;   // [C] Γ_C/Γ_i ⊙ k_i
  float* total;    // [1] Γ_C
  float* lower;    // [C, C] L
  float* scores;   // [C, C] M
  float* beta;     // [C]
  float* product;  // [2C, kTileWidth] (decayed)·S0 of one block of columns
  float* u;        // [C, kTileWidth]
};

TANDEM_INLINE int64_t chunk_scratch_floats(int64_t stride) {
  return stride * (7 * kC + 1) + 2 * kC * kC + kC + 3 * kC * kTileWidth;
}

TANDEM_INLINE ChunkScratch make_chunk_scratch(float* p, int64_t stride) {
  ChunkScratch s{};
  s.stride = stride;
  s.decay = p;
  s.q = s.decay + kC * stride;
  s.k = s.q + kC * stride;
  s.running = s.k + kC * stride;
  s.decayed = s.running + kC * stride;
  s.suffix = s.decayed + 2 * kC * stride;
  s.total = s.suffix + kC * stride;
  s.lower = s.total + stride;
  s.scores = s.lower + kC * kC;
  s.beta = s.scores + kC * kC;
  s.product = s.beta + kC;
  s.u = s.product + 2 * kC * kTileWidth;
  return s;
}

// Everything a chunk needs of q, k, g and beta, one register of key channels at a time. Decayed rows from `rows` to a
// whole tile are zeroed: the product computes and nobody reads them.
void load_chunk(const KdaArgs& args, int64_t t0, int64_t rows, int64_t h, const ChunkScratch& s) {
  const int64_t key_dim = args.q.shape[2];
  for (int64_t i = 0; i < rows; ++i) s.beta[i] = beta_of(args, t0 + i, h);
  for (int64_t c = 0; c < s.stride; c += kLanes) {
    const int64_t left = lanes_left(key_dim - c);
    Vec gamma = simd::broadcast(1.f);
    for (int64_t i = 0; i < rows; ++i) {
      const Vec decay = simd::exp(simd::load_partial(head_row(args.g, t0 + i, h) + c, left));
      const Vec k = simd::load_partial(head_row(args.k, t0 + i, h) + c, left);
      const Vec q = simd::load_partial(head_row(args.q, t0 + i, h) + c, left);
      gamma = gamma * decay;
      simd::store(s.decay + i * s.stride + c, decay);
      simd::store(s.k + i * s.stride + c, k);
      simd::store(s.q + i * s.stride + c, q);
      simd::store(s.decayed + i * s.stride + c, gamma * k);
      simd::store(s.decayed + (kC + i) * s.stride + c, gamma * q);
    }
    for (int64_t i = rows; i < round_up(rows, kTileRows); ++i) {
      simd::store(s.decayed + i * s.stride + c, simd::zero());
      simd::store(s.decayed + (kC + i) * s.stride + c, simd::zero());
    }
    simd::store(s.total + c, gamma);
    Vec after = simd::broadcast(1.f);
    for (int64_t i = rows - 1; i >= 0; --i) {
      simd::store(s.suffix + i * s.stride + c, after * simd::load(s.k + i * s.stride + c));
      after = after * simd::load(s.decay + i * s.stride + c);
    }
  }
}

// Columns [j, j + kCols) of row i: decays the running keys by exp(g_i), then L_ij and M_ij.
template <int kCols>
TANDEM_INLINE void triangle_cells(int64_t i, int64_t j, const ChunkScratch& s) {
  Vec l[kCols], m[kCols];
  for (int p = 0; p < kCols; ++p) l[p] = m[p] = simd::zero();
  for (int64_t c = 0; c < s.stride; c += kLanes) {
    const Vec decay = simd::load(s.decay + i * s.stride + c);
    const Vec k = simd::load(s.k + i * s.stride + c);
    const Vec q = simd::load(s.q + i * s.stride + c);
    for (int p = 0; p < kCols; ++p) {
      float* cell = s.running + (j + p) * s.stride + c;
      const Vec key = decay * simd::load(cell);
      simd::store(cell, key);
      l[p] = simd::fma(k, key, l[p]);
      m[p] = simd::fma(q, key, m[p]);
    }
  }
  for (int p = 0; p < kCols; ++p) {
    s.lower[i * kC + j + p] = s.beta[i] * simd::sum(l[p]);
    s.scores[i * kC + j + p] = simd::sum(m[p]);
  }
}

void triangles(int64_t rows, const ChunkScratch& s) {
  for (int64_t i = 0; i < rows; ++i) {
    int64_t j = 0;
    for (; j + kPairs <= i; j += kPairs) triangle_cells<kPairs>(i, j, s);
    for (; j < i; ++j) triangle_cells<1>(i, j, s);
    Vec diagonal = simd::zero();
    for (int64_t c = 0; c < s.stride; c += kLanes) {
      const Vec k = simd::load(s.k + i * s.stride + c);
      simd::store(s.running + i * s.stride + c, k);
      diagonal = simd::fma(simd::load(s.q + i * s.stride + c), k, diagonal);
    }
    s.scores[i * kC + i] = simd::sum(diagonal);
  }
}

// product = (decayed rows) · S0 for the rows of k and of q.
template <bool kFull>
TANDEM_INLINE void read_state(const float* S, int64_t key_dim, int64_t value_dim, int64_t rows, int64_t cols,
                              const ChunkScratch& s) {
  for (int64_t half = 0; half < 2 * kC; half += kC) {
    for (int64_t r = half; r < half + rows; r += kTileRows) {
      Vec acc[kTileRows][kTileCols];
      tile_zero(acc);
      tile_fma<kTileRows, kFull>(acc, {s.decayed + r * s.stride, s.stride, 1}, S, value_dim, key_dim, cols);
      tile_store<true>(acc, s.product + r * kTileWidth, kTileWidth, cols);
    }
  }
}

// U by forward substitution, and the outputs that read it.
template <bool kFull>
TANDEM_INLINE void solve(const KdaArgs& args, int64_t t0, int64_t rows, int64_t h, int64_t column, int64_t cols,
                         const ChunkScratch& s) {
  for (int64_t i = 0; i < rows; ++i) {
    const float* v = head_row(args.v, t0 + i, h) + column;
    float* out = head_row(args.out, t0 + i, h) + column;
    Vec u[kTileCols], o[kTileCols];
    for (int c = 0; c < kTileCols; ++c) {
      const Vec read = simd::load(s.product + i * kTileWidth + c * kLanes);
      u[c] = simd::broadcast(s.beta[i]) * (load_cols<kFull>(v + c * kLanes, cols - c * kLanes) - read);
      o[c] = simd::load(s.product + (kC + i) * kTileWidth + c * kLanes);
    }
    for (int64_t j = 0; j < i; ++j) {
      const Vec l = simd::broadcast(-s.lower[i * kC + j]);
      const Vec m = simd::broadcast(s.scores[i * kC + j]);
      for (int c = 0; c < kTileCols; ++c) {
        const Vec earlier = simd::load(s.u + j * kTileWidth + c * kLanes);
        u[c] = simd::fma(l, earlier, u[c]);
        o[c] = simd::fma(m, earlier, o[c]);
      }
    }
    const Vec m = simd::broadcast(s.scores[i * kC + i]);
    for (int c = 0; c < kTileCols; ++c) {
      simd::store(s.u + i * kTileWidth + c * kLanes, u[c]);
      store_cols<kFull>(out + c * kLanes, simd::broadcast(args.scale) * simd::fma(m, u[c], o[c]), cols - c * kLanes);
    }
  }
}

// S[c] = Γ_C[c] S[c] + Σ_i suffix_i[c] U_i for kRows rows of the state.
template <int kRows, bool kFull>
TANDEM_INLINE void update_rows(float* S, int64_t value_dim, int64_t c, int64_t rows, int64_t cols,
                               const ChunkScratch& s) {
  Vec acc[kRows][kTileCols];
  for (int r = 0; r < kRows; ++r) {
    const Vec total = simd::broadcast(s.total[c + r]);
    for (int v = 0; v < kTileCols; ++v) {
      acc[r][v] = total * load_cols<kFull>(S + (c + r) * value_dim + v * kLanes, cols - v * kLanes);
    }
  }
  tile_fma<kRows, true>(acc, {s.suffix + c, 1, s.stride}, s.u, kTileWidth, rows, cols);
  tile_store<kFull>(acc, S + c * value_dim, value_dim, cols);
}

template <bool kFull>
void chunk_columns(const KdaArgs& args, int64_t t0, int64_t rows, int64_t h, float* S, int64_t column,
                   const ChunkScratch& s) {
  const KdaShape shape = kda_shape(args);
  const int64_t cols = shape.value_dim - column;
  float* block = S + column;
  read_state<kFull>(block, shape.key_dim, shape.value_dim, rows, cols, s);
  solve<kFull>(args, t0, rows, h, column, cols, s);
  int64_t c = 0;
  for (; c + kTileRows <= shape.key_dim; c += kTileRows) {
    update_rows<kTileRows, kFull>(block, shape.value_dim, c, rows, cols, s);
  }
  for (; c < shape.key_dim; ++c) update_rows<1, kFull>(block, shape.value_dim, c, rows, cols, s);
}

void run_chunk(const KdaArgs& args, int64_t t0, int64_t rows, int64_t h, float* S, const ChunkScratch& s) {
  load_chunk(args, t0, rows, h, s);
  triangles(rows, s);
  const int64_t value_dim = args.v.shape[2];
  int64_t column = 0;
  for (; column + kTileWidth <= value_dim; column += kTileWidth) chunk_columns<true>(args, t0, rows, h, S, column, s);
  if (column < value_dim) chunk_columns<false>(args, t0, rows, h, S, column, s);
}

void run_kda_chunked(const ExecContext& ctx, const KdaArgs& args) {
  const KdaShape shape = kda_shape(args);
  const int64_t stride = round_up(shape.key_dim, kLanes);
  const int64_t scratch_size = round_up(chunk_scratch_floats(stride), 16);
  simd::Scratch memory(ctx.arena);
  float* scratch = memory.floats(scratch_size * ctx.pool.num_threads());
  const KdaSegment* segments = args.segments.data();
  const auto num_segments = static_cast<int64_t>(args.segments.size());
  ctx.pool.parallel_for(num_segments * shape.heads, [&](int64_t task, int thread) {
    const KdaSegment& segment = segments[task / shape.heads];
    const int64_t h = task % shape.heads;
    float* S = segment.state + h * shape.key_dim * shape.value_dim;
    const ChunkScratch s = make_chunk_scratch(scratch + thread * scratch_size, stride);
    for (int64_t done = 0; done < segment.num_rows; done += kC) {
      const int64_t rows = least(kC, segment.num_rows - done);
      if (rows == 1) {
        step_rows(args, segment.row_begin + done, 1, h, S, s.decay);
      } else {
        run_chunk(args, segment.row_begin + done, rows, h, S, s);
      }
    }
  });
}

}  // namespace
}  // namespace tandem
