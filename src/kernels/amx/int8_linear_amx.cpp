// kernels/linear/linear.h over int8 weights on AMX tiles, any number of tokens: a row's bits depend on nothing but the
// row and the matrix (kernels/amx/int8_tiles.inl). Up to 4 tokens take the narrow form and wait for memory; more take
// the wide one, in blocks of tokens whose packed form stays in the second-level cache.
#include "kernels/amx/int8_linear.h"
#include "kernels/amx/int8_tiles.inl"
#include "kernels/simd/rows.h"
#include "kernels/simd/scratch.h"
#include "kernels/simd/task_runs.h"

namespace tandem {
namespace {

using simd::row_of;
using simd::Scratch;

constexpr int64_t kCacheBytes = 5 << 18;       // of a thread's second-level cache, for packed activations
constexpr int64_t kTaskBytes = 64 << 10;       // of weights, when each is read once
constexpr int64_t kMostRows = 256;             // of a task, when not
constexpr int64_t kGroupRows = 2 * kTileRows;  // multiplied together
constexpr int64_t kPackCols = 512;             // of a packing task

struct Int8Plan {
  const LinearOutput* outputs;
  int64_t num_outputs;
  int64_t num_tokens;
  bool is_narrow;
  int64_t token_tiles;
  int64_t block_tiles;  // token tiles of a task
  int64_t col_tiles;
  int64_t rows_per_task;
  int64_t row_tasks;
  float* factor;  // 1 / s of each token, a whole tile of them
  float* s;
  char* packed;
  int64_t* expected;  // a line a thread: the task after the one it ran last, whose first rows it has prefetched
};
constexpr int64_t kLineTasks = 64 / sizeof(int64_t);

int64_t tasks_of(const LinearOutput& output, int64_t rows_per_task) {
  return tiles_of(output.weight.rows, rows_per_task);
}

// ---- activations --------------------------------------------------------------------------------------------------

void pack_narrow_rows(const MatrixView<const float>& x, const Int8Plan& plan) {
  for (int64_t t = 0; t < plan.num_tokens; ++t) {
    for (int64_t i = 0; i < plan.col_tiles; ++i) {
      pack_narrow(row_of(x, t), plan.factor[t], i * kInt8Cols, x.shape[1], t, plan.num_tokens,
                  plan.packed + i * narrow_bytes(plan.num_tokens));
    }
  }
}

void pack_wide_rows(const ExecContext& ctx, const MatrixView<const float>& x, const Int8Plan& plan) {
  constexpr int64_t kTilesPerTask = kPackCols / kInt8Cols;
  const int64_t tasks = tiles_of(plan.col_tiles, kTilesPerTask);
  ctx.pool.parallel_for(plan.token_tiles * tasks, [&](int64_t task, int) {
    const int64_t tile = task / tasks;
    const float* rows[kTileRows];
    for (int64_t t = 0; t < kTileRows; ++t) {
      const int64_t token = tile * kTileRows + t;
      rows[t] = token < plan.num_tokens ? row_of(x, token) : nullptr;
    }
    const int64_t begin = task % tasks * kTilesPerTask;
    const int64_t end = least(begin + kTilesPerTask, plan.col_tiles);
    for (int64_t i = begin; i < end; ++i) {
      pack_wide(rows, plan.factor + tile * kTileRows, i * kInt8Cols, x.shape[1],
                plan.packed + (tile * plan.col_tiles + i) * kWideBytes);
    }
  });
}

void pack_rows(const ExecContext& ctx, const MatrixView<const float>& x, const Int8Plan& plan) {
  for (int64_t t = plan.num_tokens; t < plan.token_tiles * kTileRows; ++t) plan.factor[t] = plan.s[t] = 0.f;
  simd::for_each_row(ctx, plan.num_tokens, x.shape[1], [&](int64_t t, int) {
    const FixedPoint point = fixed_point(row_of(x, t), x.shape[1]);
    plan.factor[t] = point.factor;
    plan.s[t] = point.s;
  });
  if (plan.is_narrow) {
    pack_narrow_rows(x, plan);
  } else {
    pack_wide_rows(ctx, x, plan);
  }
}

// ---- products -----------------------------------------------------------------------------------------------------

// Up to 16 rows' scales, one after the other.
__m512 load_scales(const WeightView& weight, int64_t row, int64_t count) {
  return _mm512_maskz_loadu_ps(simd::first_lanes(count), weight.scale + row * static_cast<int64_t>(sizeof(float)));
}

// Rows [row, row + 16·kTiles), or fewer in one tile, of the weight for all tokens of a narrow plan.
template <int64_t kTiles>
void run_narrow(const Int8Plan& plan, const LinearOutput& output, int64_t row, int64_t count, const LeftRows& left) {
  alignas(64) int32_t sums[kTiles * kTileRows * 4 * kNarrowTokens];
  multiply_narrow<kTiles == 2>(left, plan.packed, plan.num_tokens, sums);
  for (int64_t tile = 0; tile < kTiles; ++tile) {
    const int64_t first = row + tile * kTileRows;
    const int64_t rows = kTiles == 2 ? kTileRows : count;
    const __m512 scales = load_scales(output.weight, first, rows);
    for (int64_t t = 0; t < plan.num_tokens; ++t) {
      const __m512 y =
          narrow_results(sums + tile * kTileRows * 4 * plan.num_tokens, t, plan.num_tokens, scales, plan.s[t]);
      _mm512_mask_storeu_ps(row_of(output.y, t) + first, simd::first_lanes(rows), y);
    }
  }
}

void store_wide(const Int8Plan& plan, const LinearOutput& output, int64_t row, int64_t rows, int64_t token_tile,
                const int32_t* sums) {
  alignas(64) float scales[kTileRows];
  _mm512_store_ps(scales, load_scales(output.weight, row, rows));
  __m512i results[kTileRows];
  const int64_t first_token = token_tile * kTileRows;
  wide_results(sums, scales, plan.s + first_token, results);
  const int64_t tokens = least(plan.num_tokens - first_token, kTileRows);
  for (int64_t t = 0; t < tokens; ++t) {
    _mm512_mask_storeu_epi32(row_of(output.y, first_token + t) + row, simd::first_lanes(rows), results[t]);
  }
}

// The same for the token tiles [begin, end) of a wide plan.
template <int64_t kTiles>
void run_wide(const Int8Plan& plan, const LinearOutput& output, int64_t row, int64_t count, LeftRows left,
              int64_t begin, int64_t end) {
  alignas(64) int32_t sums[kTiles * kDigits * kResultFloats];
  for (int64_t tile = begin; tile < end; ++tile) {
    multiply_wide<kTiles == 2>(left, plan.packed + tile * plan.col_tiles * kWideBytes, sums);
    left.next = nullptr;  // is on its way
    for (int64_t half = 0; half < kTiles; ++half) {
      store_wide(plan, output, row + half * kTileRows, kTiles == 2 ? kTileRows : count, tile,
                 sums + half * kDigits * kResultFloats);
    }
  }
}

void configure(const Int8Plan& plan, int64_t rows) {
  load_config(plan.is_narrow ? narrow_config(rows, plan.num_tokens) : wide_config(rows));
}

// What is read after row `row` of an output: its next rows, or the next output's.
const char* codes_from(const Int8Plan& plan, const LinearOutput* output, int64_t row) {
  if (row < output->weight.rows)
    return static_cast<const char*>(output->weight.data) + row * output->weight.row_bytes();
  return output + 1 < plan.outputs + plan.num_outputs ? static_cast<const char*>(output[1].weight.data) : nullptr;
}

void run_task(const Int8Plan& plan, int64_t task, int thread) {
  int64_t row_task = task % plan.row_tasks;
  const int64_t first_tile = task / plan.row_tasks * plan.block_tiles;
  const int64_t last_tile = least(first_tile + plan.block_tiles, plan.token_tiles);
  const LinearOutput* output = plan.outputs;
  for (; row_task >= tasks_of(*output, plan.rows_per_task); ++output) row_task -= tasks_of(*output, plan.rows_per_task);
  const int64_t end = least((row_task + 1) * plan.rows_per_task, output->weight.rows);
  configure(plan, kTileRows);
  int64_t& expected = plan.expected[thread * kLineTasks];
  if (expected != task) {
    const char* codes = codes_from(plan, output, row_task * plan.rows_per_task);
    for (int64_t i = 0; i < plan.col_tiles; ++i) prefetch_step<2>(codes, output->weight.row_bytes(), i);
  }
  expected = task + 1;
  for (int64_t row = row_task * plan.rows_per_task; row < end;) {
    const int64_t left_rows = end - row;
    const int64_t count = left_rows >= kGroupRows ? kGroupRows : least(left_rows, kTileRows);
    if (count < kTileRows) configure(plan, count);
    const LeftRows left{codes_from(plan, output, row), output->weight.row_bytes(), plan.col_tiles,
                        codes_from(plan, output, row + count)};
    if (count == kGroupRows) {
      plan.is_narrow ? run_narrow<2>(plan, *output, row, count, left)
                     : run_wide<2>(plan, *output, row, count, left, first_tile, last_tile);
    } else {
      plan.is_narrow ? run_narrow<1>(plan, *output, row, count, left)
                     : run_wide<1>(plan, *output, row, count, left, first_tile, last_tile);
    }
    row += count;
  }
  _tile_release();
}

int64_t choose_rows(const Int8Plan& plan, int64_t rows, int threads) {
  const int64_t blocks = tiles_of(plan.token_tiles, plan.block_tiles);
  const int64_t most = plan.token_tiles == 1 ? kTaskBytes / (plan.col_tiles * kInt8Cols) : kMostRows;
  const int64_t wanted = least(rows * blocks / (8 * threads), most) / kGroupRows * kGroupRows;
  return wanted < kGroupRows ? kGroupRows : wanted;
}

}  // namespace

namespace amx {

bool multiplies_int8(const WeightView& weight) {
  return weight.format == WeightFormat::kInt8 && weight.cols <= kMostInt8Cols;
}

void int8_linear(const ExecContext& ctx, const MatrixView<const float>& x, const LinearOutput* outputs,
                 int64_t num_outputs) {
  Scratch scratch(ctx.arena);
  Int8Plan plan{};
  plan.outputs = outputs;
  plan.num_outputs = num_outputs;
  plan.num_tokens = x.shape[0];
  plan.is_narrow = plan.num_tokens <= kNarrowTokens;
  plan.token_tiles = tiles_of(plan.num_tokens, kTileRows);
  plan.col_tiles = tiles_of(x.shape[1], kInt8Cols);
  const int64_t tile_bytes = plan.col_tiles * (plan.is_narrow ? narrow_bytes(plan.num_tokens) : kWideBytes);
  plan.block_tiles = kCacheBytes / tile_bytes;
  if (plan.block_tiles < 1) plan.block_tiles = 1;
  int64_t rows = 0;
  for (int64_t i = 0; i < num_outputs; ++i) rows += outputs[i].weight.rows;
  plan.rows_per_task = choose_rows(plan, rows, ctx.pool.num_threads());
  for (int64_t i = 0; i < num_outputs; ++i) plan.row_tasks += tasks_of(outputs[i], plan.rows_per_task);
  plan.factor = scratch.floats(plan.token_tiles * kTileRows);
  plan.s = scratch.floats(plan.token_tiles * kTileRows);
  plan.packed = static_cast<char*>(scratch.bytes(plan.token_tiles * tile_bytes));
  const int threads = ctx.pool.num_threads();
  plan.expected = static_cast<int64_t*>(scratch.bytes(threads * 64));
  for (int64_t i = 0; i < threads * kLineTasks; ++i) plan.expected[i] = -1;
  pack_rows(ctx, x, plan);
  const int64_t blocks = tiles_of(plan.token_tiles, plan.block_tiles);
  simd::for_each_task_in_runs(ctx, plan.row_tasks * blocks,
                              [&](int64_t task, int thread, bool) { run_task(plan, task, thread); });
}

}  // namespace amx
}  // namespace tandem
