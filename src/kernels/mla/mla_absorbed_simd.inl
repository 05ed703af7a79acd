// kernels/mla/mla_absorbed_simd.inl: the absorbed form of mla.h over Vec, for decode.
//
//   Three loops over the threads: q̃ of every row and head; attention over the latents, where a task takes one row, a
//   block of heads that share each latent read, and one part of the context; the parts merged and W_UV applied. Parts
//   and tiles lie on a grid from position 0 that depends on the row's position alone, so that neither the number of
//   threads nor the split into calls moves a rounding. Parts: flash-decoding (Dao et al. 2023).
#include "kernels/backend_entries.h"
#include "kernels/mla/mla_load_simd.inl"

namespace tandem {
namespace {

constexpr int64_t kTile = 32;                      // tokens whose weights are computed together
constexpr int kHeads = 4;                          // heads that share a read of the latents
constexpr int kTokens = kLanes == 16 ? 4 : 2;      // tokens a register tile of scores
constexpr int kGatherCols = kLanes == 16 ? 4 : 2;  // registers of latent columns accumulated together
constexpr int kGatherWidth = kGatherCols * kLanes;
constexpr int64_t kPartTokens = 512;  // of the context, a task, at least
constexpr int64_t kMaxParts = 64;     // bounds the scratch at long contexts

struct Part {
  float largest;
  float sum;
};

struct Pass {
  const MlaArgs* args;
  MlaShape shape;
  int64_t query_stride;  // rank + rope in whole registers
  int64_t rank_stride;   // rank in whole registers
  int64_t max_parts;
  float* query;     // [T, heads, query_stride]  [ q̃ | q[nope:] | 0 ]
  float* attended;  // [T, heads, max_parts, rank_stride]  Σ exp(score − largest) c_s
  Part* parts;      // [T, heads, max_parts]
};

// A query row and the context that it sees.
struct Row {
  int64_t t = 0;
  int64_t visible = 0;
  const MlaSegment* segment = nullptr;
};

TANDEM_INLINE int64_t part_tokens(int64_t visible) {
  int64_t tokens = kPartTokens;
  while (visible > tokens * kMaxParts) tokens *= 2;
  return tokens;
}
TANDEM_INLINE int64_t num_parts(int64_t visible) { return (visible + part_tokens(visible) - 1) / part_tokens(visible); }

// q̃[c] = Σ_n W_UK[n][c] q[n] for kRegisters registers of c.
template <WeightFormat F, int kRegisters, bool kFull>
TANDEM_INLINE void absorb_columns(const void* weight, int64_t first, int64_t rank, int64_t nope, const float* q,
                                  float* out, int64_t left) {
  Vec acc[kRegisters];
  for (int r = 0; r < kRegisters; ++r) acc[r] = simd::zero();
  for (int64_t n = 0; n < nope; ++n) {
    const Vec element = simd::broadcast(q[n]);
    for (int r = 0; r < kRegisters; ++r) {
      const int64_t index = first + n * rank + r * kLanes;
      const Vec w = kFull ? load_stored<F>(weight, index) : load_stored_partial<F>(weight, index, left);
      acc[r] = simd::fma(element, w, acc[r]);
    }
  }
  for (int r = 0; r < kRegisters; ++r) store_cols<kFull>(out + r * kLanes, acc[r], left);
}

template <WeightFormat F>
void absorb_query(const Pass& pass, int64_t t, int64_t h) {
  constexpr int kWide = 8;
  const MlaShape& shape = pass.shape;
  const MlaArgs& args = *pass.args;
  const float* q = args.q.data + t * args.q.stride[0] + h * args.q.stride[1];
  float* out = pass.query + (t * shape.heads + h) * pass.query_stride;
  const int64_t first = h * (shape.nope + shape.v) * shape.rank;
  int64_t c = 0;
  for (; c + kWide * kLanes <= shape.rank; c += kWide * kLanes) {
    absorb_columns<F, kWide, true>(args.kv_b.data, first + c, shape.rank, shape.nope, q, out + c, kLanes);
  }
  for (; c + kLanes <= shape.rank; c += kLanes) {
    absorb_columns<F, 1, true>(args.kv_b.data, first + c, shape.rank, shape.nope, q, out + c, kLanes);
  }
  if (c < shape.rank) {
    absorb_columns<F, 1, false>(args.kv_b.data, first + c, shape.rank, shape.nope, q, out + c, shape.rank - c);
  }
  for (int64_t i = 0; i < shape.rope; ++i) out[shape.rank + i] = q[shape.nope + i];
  for (int64_t i = shape.width(); i < pass.query_stride; ++i) out[i] = 0.f;
}

void absorb_query(const Pass& pass, WeightFormat format, int64_t t, int64_t h) {
  switch (format) {
    case WeightFormat::kF32: absorb_query<WeightFormat::kF32>(pass, t, h); return;
    case WeightFormat::kF16: absorb_query<WeightFormat::kF16>(pass, t, h); return;
    case WeightFormat::kBF16: absorb_query<WeightFormat::kBF16>(pass, t, h); return;
    case WeightFormat::kInt8:
    case WeightFormat::kMxfp4: return;  // refused by mla.cpp
  }
}

// scores[h][s] = q̃_h · latent_s for kN heads and `count` ≤ kTile tokens.
template <int kN>
TANDEM_INLINE void score_tile(const float* query, int64_t query_stride, const float* const* rows, int64_t width,
                              int64_t count, float* scores) {
  for (int64_t s = 0; s < count; s += kTokens) {
    const float* row[kTokens];
    for (int64_t j = 0; j < kTokens; ++j) row[j] = rows[least(s + j, count - 1)];
    Vec acc[kN][kTokens];
    for (int h = 0; h < kN; ++h) {
      for (int j = 0; j < kTokens; ++j) acc[h][j] = simd::zero();
    }
    int64_t c = 0;
    for (; c + kLanes <= width; c += kLanes) {
      Vec latent[kTokens];
      for (int j = 0; j < kTokens; ++j) latent[j] = simd::load(row[j] + c);
      for (int h = 0; h < kN; ++h) {
        const Vec q = simd::load(query + h * query_stride + c);
        for (int j = 0; j < kTokens; ++j) acc[h][j] = simd::fma(q, latent[j], acc[h][j]);
      }
    }
    if (c < width) {
      for (int h = 0; h < kN; ++h) {
        const Vec q = simd::load(query + h * query_stride + c);
        for (int j = 0; j < kTokens; ++j) {
          acc[h][j] = simd::fma(q, simd::load_partial(row[j] + c, width - c), acc[h][j]);
        }
      }
    }
    for (int h = 0; h < kN; ++h) {
      for (int64_t j = 0; j < kTokens && s + j < count; ++j) scores[h * kTile + s + j] = simd::sum(acc[h][j]);
    }
  }
}

// Scores of one head to weights exp(score − largest); weights from `count` to the end of the register are 0.
TANDEM_INLINE void soften(float* scores, int64_t count, float scale, Part& part, float* correction) {
  Vec largest = simd::broadcast(-__builtin_inff());
  for (int64_t s = 0; s < count; s += kLanes) {
    // A tail repeats the last score.
    for (int64_t i = count; i < s + kLanes; ++i) scores[i] = scores[count - 1];
    const Vec score = simd::broadcast(scale) * simd::load(scores + s);
    simd::store(scores + s, score);
    largest = simd::max(score, largest);
  }
  const float tile_largest = simd::reduce_max(largest);
  const float updated = tile_largest > part.largest ? tile_largest : part.largest;
  Vec total = simd::zero();
  for (int64_t s = 0; s < count; s += kLanes) {
    Vec weight = simd::exp(simd::load(scores + s) - simd::broadcast(updated));
    simd::store(scores + s, weight);
    if (count - s < kLanes) weight = simd::load_partial(scores + s, count - s);
    total = total + weight;
  }
  simd::store_partial(correction, simd::exp(simd::broadcast(part.largest - updated)), 1);
  part.sum = part.sum * *correction + simd::sum(total);
  part.largest = updated;
}

// attended[h][c] = correction[h] · attended[h][c] + Σ_s weights[h][s] latent_s[c] for kGatherCols registers of c.
template <int kN, bool kFull>
TANDEM_INLINE void gather_columns(const float* const* rows, int64_t count, int64_t c, int64_t left,
                                  const float* weights, const float* correction, bool first, float* attended,
                                  int64_t attended_row) {
  Vec acc[kN][kGatherCols];
  tile_zero(acc);
  if (!first) {
    for (int h = 0; h < kN; ++h) {
      for (int r = 0; r < kGatherCols; ++r) {
        acc[h][r] = simd::broadcast(correction[h]) *
                    load_cols<kFull>(attended + h * attended_row + c + r * kLanes, left - r * kLanes);
      }
    }
  }
  for (int64_t s = 0; s < count; ++s) {
    Vec latent[kGatherCols];
    for (int r = 0; r < kGatherCols; ++r) latent[r] = load_cols<kFull>(rows[s] + c + r * kLanes, left - r * kLanes);
    for (int h = 0; h < kN; ++h) {
      const Vec weight = simd::broadcast(weights[h * kTile + s]);
      for (int r = 0; r < kGatherCols; ++r) acc[h][r] = simd::fma(weight, latent[r], acc[h][r]);
    }
  }
  tile_store<kFull>(acc, attended + c, attended_row, left);
}

// kN heads of one row over one part of its context. stage: [kTile, query_stride] floats for widened latents.
template <int kN>
void attend_part(const Pass& pass, const Row& row, int64_t h, int64_t part, float* stage) {
  const MlaShape& shape = pass.shape;
  const PageTable table = page_table(row.segment->latents, shape.width());
  const int64_t begin = part * part_tokens(row.visible);
  const int64_t end = least(row.visible, begin + part_tokens(row.visible));
  const int64_t slot = (row.t * shape.heads + h) * pass.max_parts + part;
  const int64_t attended_row = pass.max_parts * pass.rank_stride;
  float* attended = pass.attended + slot * pass.rank_stride;
  Part* parts = pass.parts + slot;
  float weights[kN * kTile];
  float correction[kN];
  const float* rows[kTile];
  for (int i = 0; i < kN; ++i) parts[i * pass.max_parts] = {-__builtin_inff(), 0.f};
  for (int64_t first = begin; first < end; first += kTile) {
    const int64_t count = least(kTile, end - first);
    for (int64_t s = 0; s < count; ++s) {
      const void* stored = table.row(first + s);
      if (table.format == WeightFormat::kF32) {
        rows[s] = static_cast<const float*>(stored);
      } else {
        widen_as<WeightFormat::kBF16>(stored, 0, shape.width(), stage + s * pass.query_stride);
        rows[s] = stage + s * pass.query_stride;
      }
    }
    score_tile<kN>(pass.query + (row.t * shape.heads + h) * pass.query_stride, pass.query_stride, rows, shape.width(),
                   count, weights);
    for (int i = 0; i < kN; ++i) {
      soften(weights + i * kTile, count, pass.args->scale, parts[i * pass.max_parts], correction + i);
    }
    int64_t c = 0;
    for (; c + kGatherWidth <= shape.rank; c += kGatherWidth) {
      gather_columns<kN, true>(rows, count, c, kGatherWidth, weights, correction, first == begin, attended,
                               attended_row);
    }
    if (c < shape.rank) {
      gather_columns<kN, false>(rows, count, c, shape.rank - c, weights, correction, first == begin, attended,
                                attended_row);
    }
  }
}

// The parts of one row and head joined into the first one's attended row, divided by the softmax sum.
void merge_parts(const Pass& pass, const Row& row, int64_t h) {
  const int64_t slot = (row.t * pass.shape.heads + h) * pass.max_parts;
  const int64_t count = num_parts(row.visible);
  float* attended = pass.attended + slot * pass.rank_stride;
  const Part* parts = pass.parts + slot;
  float weight[kMaxParts];
  float largest = parts[0].largest;
  for (int64_t p = 1; p < count; ++p) largest = parts[p].largest > largest ? parts[p].largest : largest;
  float sum = 0.f;
  for (int64_t p = 0; p < count; ++p) {
    simd::store_partial(weight + p, simd::exp(simd::broadcast(parts[p].largest - largest)), 1);
    sum += weight[p] * parts[p].sum;
  }
  for (int64_t c = 0; c < pass.shape.rank; c += kLanes) {
    const int64_t left = lanes_left(pass.shape.rank - c);
    Vec total = simd::load_partial(attended + c, left) * simd::broadcast(weight[0]);
    for (int64_t p = 1; p < count; ++p) {
      total =
          simd::fma(simd::broadcast(weight[p]), simd::load_partial(attended + p * pass.rank_stride + c, left), total);
    }
    simd::store(attended + c, total / simd::broadcast(sum));
  }
}

// out = W_UV m: the rows of W_UV against the merged latents.
template <WeightFormat F>
void project_values(const Pass& pass, const Row& row, int64_t h) {
  constexpr int kRows = 4;
  const MlaShape& shape = pass.shape;
  const MlaArgs& args = *pass.args;
  const float* m = pass.attended + (row.t * shape.heads + h) * pass.max_parts * pass.rank_stride;
  float* out = args.out.data + row.t * args.out.stride[0] + h * args.out.stride[1];
  const int64_t first = (h * (shape.nope + shape.v) + shape.nope) * shape.rank;
  for (int64_t j = 0; j < shape.v; j += kRows) {
    Vec acc[kRows];
    int64_t start[kRows];
    for (int r = 0; r < kRows; ++r) {
      acc[r] = simd::zero();
      start[r] = first + least(j + r, shape.v - 1) * shape.rank;
    }
    int64_t c = 0;
    for (; c + kLanes <= shape.rank; c += kLanes) {
      const Vec latent = simd::load(m + c);
      for (int r = 0; r < kRows; ++r) {
        acc[r] = simd::fma(load_stored<F>(args.kv_b.data, start[r] + c), latent, acc[r]);
      }
    }
    if (c < shape.rank) {
      const Vec latent = simd::load(m + c);
      for (int r = 0; r < kRows; ++r) {
        const Vec w = load_stored_partial<F>(args.kv_b.data, start[r] + c, shape.rank - c);
        acc[r] = simd::fma(w, latent, acc[r]);
      }
    }
    for (int64_t r = 0; r < kRows && j + r < shape.v; ++r) out[j + r] = simd::sum(acc[r]);
  }
}

void project_values(const Pass& pass, WeightFormat format, const Row& row, int64_t h) {
  switch (format) {
    case WeightFormat::kF32: project_values<WeightFormat::kF32>(pass, row, h); return;
    case WeightFormat::kF16: project_values<WeightFormat::kF16>(pass, row, h); return;
    case WeightFormat::kBF16: project_values<WeightFormat::kBF16>(pass, row, h); return;
    case WeightFormat::kInt8:
    case WeightFormat::kMxfp4: return;  // refused by mla.cpp
  }
}

// The attention tasks of all rows: (row, part, block of heads), blocks innermost so that a part stays in the cache.
void attend(const ExecContext& ctx, const Pass& pass, const Row* rows, const int32_t* first_task, int64_t num_rows,
            float* stage) {
  const int64_t head_blocks = (pass.shape.heads + kHeads - 1) / kHeads;
  ctx.pool.parallel_for(first_task[num_rows], [&](int64_t task, int thread) {
    int64_t low = 0;
    int64_t high = num_rows;  // the row is in [low, high)
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (first_task[middle] <= task ? low : high) = middle;
    }
    const int64_t within = task - first_task[low];
    const int64_t part = within / head_blocks;
    const int64_t h = within % head_blocks * kHeads;
    float* own_stage = stage + thread * kTile * pass.query_stride;
    if (h + kHeads <= pass.shape.heads) {
      attend_part<kHeads>(pass, rows[low], h, part, own_stage);
    } else {
      for (int64_t i = h; i < pass.shape.heads; ++i) attend_part<1>(pass, rows[low], i, part, own_stage);
    }
  });
}

// Lists the query rows; returns how many, and sets the largest number of parts and each row's first task.
int64_t list_rows(const MlaArgs& args, int64_t heads, Row* rows, int32_t* first_task, int64_t& max_parts) {
  const int64_t head_blocks = (heads + kHeads - 1) / kHeads;
  const MlaSegment* segments = args.segments.data();
  const auto num_segments = static_cast<int64_t>(args.segments.size());
  int64_t count = 0;
  int64_t tasks = 0;
  max_parts = 1;
  for (int64_t i = 0; i < num_segments; ++i) {
    for (int64_t r = 0; r < segments[i].num_rows; ++r) {
      const int64_t visible = segments[i].latents.length - segments[i].num_rows + r + 1;
      first_task[count] = static_cast<int32_t>(tasks);
      rows[count++] = {segments[i].row_begin + r, visible, &segments[i]};
      tasks += num_parts(visible) * head_blocks;
      if (num_parts(visible) > max_parts) max_parts = num_parts(visible);
    }
  }
  first_task[count] = static_cast<int32_t>(tasks);
  return count;
}

void run_mla_absorbed(const ExecContext& ctx, const MlaArgs& args) {
  simd::Scratch memory(ctx.arena);
  const int64_t T = args.q.shape[0];
  Pass pass{};
  pass.args = &args;
  pass.shape = mla_shape(args);
  pass.query_stride = round_up(pass.shape.width(), kLanes);
  pass.rank_stride = round_up(pass.shape.rank, kLanes);
  Row* rows = static_cast<Row*>(memory.bytes(T * static_cast<int64_t>(sizeof(Row))));
  int32_t* first_task = memory.ints(T + 1);
  const int64_t num_rows = list_rows(args, pass.shape.heads, rows, first_task, pass.max_parts);
  const int64_t slots = T * pass.shape.heads * pass.max_parts;
  pass.query = memory.floats(T * pass.shape.heads * pass.query_stride);
  pass.attended = memory.floats(slots * pass.rank_stride);
  pass.parts = static_cast<Part*>(memory.bytes(slots * static_cast<int64_t>(sizeof(Part))));
  float* stage = memory.floats(kTile * pass.query_stride * ctx.pool.num_threads());
  const WeightFormat format = args.kv_b.format;
  // Rows innermost: a head's weights are read from memory once for all of them.
  ctx.pool.parallel_for(pass.shape.heads, [&](int64_t h, int) {
    for (int64_t i = 0; i < num_rows; ++i) absorb_query(pass, format, rows[i].t, h);
  });
  attend(ctx, pass, rows, first_task, num_rows, stage);
  ctx.pool.parallel_for(pass.shape.heads, [&](int64_t h, int) {
    for (int64_t i = 0; i < num_rows; ++i) {
      merge_parts(pass, rows[i], h);
      project_values(pass, format, rows[i], h);
    }
  });
}

}  // namespace
}  // namespace tandem
