// kernels/moe/experts.h for the rows of prompts, on AMX tiles, in two passes over the (token, slot) pairs grouped by
// expert, 16 pairs of one expert to a token tile.
//
//   Tiles are taken in chunks that bound the scratch, experts ascending, so a token's sum keeps its order.
//
//   0  task (token tile):               z of its pairs, packed
//   1  task (expert, rows of W1/W3):    hidden = act(W1 z, W3 z), left packed for pass 2 as it comes out of the tiles
//   2  task (rows of W2):               for every expert in ascending order  out[token] += w · (W2 hidden)
#include "kernels/activation/gated_act_rows.h"
#include "kernels/amx/tiles.inl"
#include "kernels/backend_entries.h"
#include "kernels/moe/expert_groups.h"
#include "kernels/simd/scratch.h"

namespace tandem {
namespace {

using namespace simd;

constexpr int64_t kPackedBudgetBytes = int64_t{64} << 20;  // of the token tiles that are in work together

struct TiledExperts {
  const MoeExpertsArgs* args;
  const ExpertWeights* experts;
  ActConstants act;
  int64_t Dl, I, k;
  int64_t in_tiles;      // of 32 columns: Dl
  int64_t hidden_tiles;  // I
  ExpertGroups groups;
  int32_t* tile_begin;  // of each active expert's token tiles; one more entry: their number
  // The chunk in work.
  int64_t first_tile, last_tile;
  int64_t first_expert, last_expert;  // of the active ones: those with tiles in it
  char* z;                            // packed, by token tile of the chunk
  char* hidden;                       // likewise
  char* scratch;
  int64_t scratch_per_thread;
};

// The tiles of an active expert that are in the chunk.
int64_t begin_of(const TiledExperts& plan, int64_t index) {
  return plan.tile_begin[index] > plan.first_tile ? plan.tile_begin[index] : plan.first_tile;
}
int64_t end_of(const TiledExperts& plan, int64_t index) { return least(plan.tile_begin[index + 1], plan.last_tile); }

// The pairs of token tile `tile` of active expert `index`: up to 16, from the first.
const int32_t* pairs_of(const TiledExperts& plan, int64_t index, int64_t tile, int64_t& count) {
  const int64_t first = plan.groups.pair_begin[index] + (tile - plan.tile_begin[index]) * kTileRows;
  count = least(plan.groups.pair_begin[index + 1] - first, kTileRows);
  return plan.groups.pair + first;
}

int64_t expert_of_tile(const TiledExperts& plan, int64_t tile) {
  int64_t index = plan.first_expert;
  while (plan.tile_begin[index + 1] <= tile) ++index;
  return index;
}

void pack_inputs(const TiledExperts& plan, int64_t tile) {
  const float* rows[kTileRows] = {};
  int64_t count = 0;
  const int32_t* pairs = pairs_of(plan, expert_of_tile(plan, tile), tile, count);
  for (int64_t i = 0; i < count; ++i) rows[i] = row_of(plan.args->z, pairs[i] / plan.k);
  pack_tokens(rows, plan.Dl, plan.z + (tile - plan.first_tile) * plan.in_tiles * kPackedBytes);
}

void run_hidden(const TiledExperts& plan, int64_t index, int64_t row_tile, int thread) {
  const TileScope scope;
  const ExpertWeights& expert = plan.experts[plan.groups.active[index]];
  char* gate = plan.scratch + thread * plan.scratch_per_thread;
  char* up = gate + panel_bytes(plan.Dl);
  fill_panel(expert.w1, row_tile * kPanelRows, gate);
  fill_panel(expert.w3, row_tile * kPanelRows, up);
  alignas(64) float gates[4 * kResultFloats];
  const int64_t stride = plan.in_tiles * kPackedBytes;
  const int64_t end = end_of(plan, index) - plan.first_tile;
  for (int64_t tile = begin_of(plan, index) - plan.first_tile; tile < end; tile += 2) {
    const char* z = plan.z + tile * stride;
    if (tile + 1 < end) {
      multiply<true>(gate, z, stride, plan.in_tiles, gates);
    } else {
      multiply<false>(gate, z, stride, plan.in_tiles, gates);
    }
    multiply_tiles(up, plan.z, plan.in_tiles, tile, least(tile + 2, end), [&](int64_t each, float* ups) {
      const float* own_gates = gates + (each - tile) * 2 * kResultFloats;
      for (int64_t i = 0; i < 2 * kResultFloats; i += Vec::kLanes) {
        store(ups + i, gated_activation(plan.act, load(own_gates + i), load(ups + i)));
      }
      pack_results(ups, plan.hidden + (each * plan.hidden_tiles + row_tile) * kPackedBytes);
    });
  }
}

// out[token][row …] += w · result for the pairs of one token tile.
void add_result(const TiledExperts& plan, const float* result, int64_t index, int64_t tile, int64_t row) {
  int64_t count = 0;
  const int32_t* pairs = pairs_of(plan, index, tile, count);
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t first = row + half * kTileRows;
    const int64_t outputs = least(plan.Dl - first, kTileRows);
    if (outputs <= 0) return;
    __m512i rows[16];
    by_token(result + half * kResultFloats, rows);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t token = pairs[i] / plan.k;
      const Vec weight = broadcast(row_of(plan.args->topk_weights, token)[pairs[i] % plan.k]);
      float* out = row_of(plan.args->out, token) + first;
      const Vec sum = load_partial(out, outputs) + weight * Vec{_mm512_castsi512_ps(rows[i])};
      store_partial(out, sum, outputs);
    }
  }
}

void run_combine(const TiledExperts& plan, int64_t row_tile, int thread) {
  const TileScope scope;
  const int64_t row = row_tile * kPanelRows;
  const int64_t row_end = least(row + kPanelRows, plan.Dl);
  const bool is_first = plan.first_tile == 0 && !plan.args->add_to_out;
  for (int64_t t = 0; t < plan.args->z.shape[0] && is_first; ++t) {
    float* out = row_of(plan.args->out, t);
    for (int64_t r = row; r < row_end; ++r) out[r] = 0.f;
  }
  char* down = plan.scratch + thread * plan.scratch_per_thread;
  for (int64_t index = plan.first_expert; index < plan.last_expert; ++index) {
    fill_panel(plan.experts[plan.groups.active[index]].w2, row, down);
    multiply_tiles(down, plan.hidden, plan.hidden_tiles, begin_of(plan, index) - plan.first_tile,
                   end_of(plan, index) - plan.first_tile, [&](int64_t tile, const float* result) {
                     add_result(plan, result, index, plan.first_tile + tile, row);
                   });
  }
}

void run_chunk(const ExecContext& ctx, const TiledExperts& plan) {
  ctx.pool.parallel_for(plan.last_tile - plan.first_tile,
                        [&](int64_t tile, int) { pack_inputs(plan, plan.first_tile + tile); });
  ctx.pool.parallel_for((plan.last_expert - plan.first_expert) * plan.hidden_tiles, [&](int64_t task, int thread) {
    run_hidden(plan, plan.first_expert + task / plan.hidden_tiles, task % plan.hidden_tiles, thread);
  });
  ctx.pool.parallel_for(tiles_of(plan.Dl, kPanelRows),
                        [&](int64_t task, int thread) { run_combine(plan, task, thread); });
}

void run_chunks(const ExecContext& ctx, TiledExperts& plan, int64_t most_tiles) {
  int32_t tiles = 0;
  for (int64_t i = 0; i < plan.groups.num_active; ++i) {
    plan.tile_begin[i] = tiles;
    tiles += static_cast<int32_t>(tiles_of(plan.groups.pair_begin[i + 1] - plan.groups.pair_begin[i], kTileRows));
  }
  plan.tile_begin[plan.groups.num_active] = tiles;
  plan.last_expert = 0;
  for (plan.first_tile = 0; plan.first_tile < tiles || plan.first_tile == 0; plan.first_tile += most_tiles) {
    plan.last_tile = least(plan.first_tile + most_tiles, tiles);
    plan.first_expert = plan.last_expert;
    // The last chunk may have ended inside an expert.
    if (plan.first_expert > 0 && plan.tile_begin[plan.first_expert] > plan.first_tile) --plan.first_expert;
    while (plan.last_expert < plan.groups.num_active && plan.tile_begin[plan.last_expert] < plan.last_tile) {
      ++plan.last_expert;
    }
    run_chunk(ctx, plan);
  }
}

bool are_exact_in_bf16(const MoeExpertsArgs& a) {
  if (a.expert_act != ExpertAct::kF32) return false;
  const ExpertWeights* experts = a.experts.data();
  const auto count = static_cast<int64_t>(a.experts.size());
  for (int64_t e = a.expert_begin; e < least(count, a.expert_end); ++e) {
    if (!is_exact_in_bf16(experts[e].w1) || !is_exact_in_bf16(experts[e].w3) || !is_exact_in_bf16(experts[e].w2)) {
      return false;
    }
  }
  return true;
}

}  // namespace

namespace amx {

void moe_experts_prefill(const ExecContext& ctx, const MoeExpertsArgs& a) {
  if (!are_exact_in_bf16(a)) return avx512::moe_experts(ctx, a);
  const int64_t T = a.z.shape[0];
  const auto E = static_cast<int64_t>(a.experts.size());
  const int threads = ctx.pool.num_threads();
  TiledExperts plan{};
  plan.args = &a;
  plan.experts = a.experts.data();
  plan.act = act_constants(a.act);
  plan.Dl = a.z.shape[1];
  plan.I = plan.experts[0].w1.rows;
  plan.k = a.topk_ids.shape[1];
  plan.in_tiles = tiles_of(plan.Dl, kTileCols);
  plan.hidden_tiles = tiles_of(plan.I, kPanelRows);
  const int64_t tile_bytes = (plan.in_tiles + plan.hidden_tiles) * kPackedBytes;
  // Every active expert may leave one tile partly filled.
  const int64_t all_tiles = tiles_of(T * plan.k, kTileRows) + least(E, T * plan.k);
  int64_t most_tiles = least(kPackedBudgetBytes / tile_bytes / 2 * 2, all_tiles);
  if (most_tiles < 2) most_tiles = 2;
  Scratch scratch(ctx.arena);
  plan.groups.first_token = 0;
  plan.groups.active = scratch.ints(E);
  plan.groups.pair_begin = scratch.ints(E + 1);
  plan.groups.pair = scratch.ints(T * plan.k);
  plan.tile_begin = scratch.ints(E + 1);
  plan.z = static_cast<char*>(scratch.bytes(most_tiles * plan.in_tiles * kPackedBytes));
  plan.hidden = static_cast<char*>(scratch.bytes(most_tiles * plan.hidden_tiles * kPackedBytes));
  const int64_t down = panel_bytes(plan.I);
  plan.scratch_per_thread = 2 * panel_bytes(plan.Dl) > down ? 2 * panel_bytes(plan.Dl) : down;
  plan.scratch = static_cast<char*>(scratch.bytes(plan.scratch_per_thread * threads));
  group_by_expert(plan.groups, a, T, scratch.ints(E));
  run_chunks(ctx, plan, most_tiles);
}

}  // namespace amx
}  // namespace tandem
