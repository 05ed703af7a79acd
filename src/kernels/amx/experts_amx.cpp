// kernels/moe/experts.h for the rows of decodes over MXFP4 experts, on AMX tiles, in two passes over the (token, slot)
// pairs grouped by expert.
//
//   0  task (token):                    the digits of z
//   1  task (expert, rows of W1/W3):    hidden[pair] = act(W1 z, W3 z)
//      task (pair):                     the digits of hidden
//   2  task (rows of W2):               for every expert in ascending order  out[token] += w · (W2 hidden)
//
//   While a thread multiplies 32 rows, those that it reads next are on their way from memory.
#include "kernels/activation/gated_act_rows.h"
#include "kernels/amx/mxfp4_digits.inl"
#include "kernels/backend_entries.h"
#include "kernels/moe/expert_groups.h"
#include "kernels/simd/scratch.h"
#include "kernels/simd/task_runs.h"

namespace tandem {
namespace {

using namespace simd;

constexpr int64_t kPackedBudgetBytes = int64_t{64} << 20;  // of the tokens that are in work together

struct DigitExperts {
  const MoeExpertsArgs* args;
  const ExpertWeights* experts;
  ActConstants act;
  int64_t Dl, I, k;
  ExpertGroups groups;
  DigitToken* z;       // by token of the block
  DigitToken* hidden;  // by position in groups.pair
  char* z_digits;
  char* hidden_digits;
  float* hidden_values;  // [position][I]
  DigitToken* inputs;    // most_pairs a thread
  char* scratch;
  int64_t scratch_per_thread;
  int64_t most_pairs;  // of an expert
};

TANDEM_INLINE DigitPanel panel_of(const WeightView& weight, int64_t row) {
  return {&weight, row, least(weight.rows - row, kPanelRows), nullptr, nullptr};
}
TANDEM_INLINE void reads_after(DigitPanel& panel, const WeightView& next, int64_t row) {
  panel.next = static_cast<const char*>(next.data) + row * (next.cols / 2);
  panel.next_scale = next.scale + row * (next.cols / kTileCols);
}

// Hidden rows [row, row + 32) of one expert, and what this thread reads afterwards, if anything.
void run_hidden(const DigitExperts& plan, int64_t index, int64_t row, const WeightView* next, int64_t next_row,
                int thread) {
  const ExpertWeights& expert = plan.experts[plan.groups.active[index]];
  const int64_t begin = plan.groups.pair_begin[index];
  const int64_t count = plan.groups.pair_begin[index + 1] - begin;
  DigitToken* z = plan.inputs + thread * plan.most_pairs;
  for (int64_t i = 0; i < count; ++i) z[i] = plan.z[plan.groups.pair[begin + i] / plan.k];
  char* scratch = plan.scratch + thread * plan.scratch_per_thread;
  DigitPanel gate = panel_of(expert.w1, row);
  reads_after(gate, expert.w3, row);
  stream_digits(gate, z, count, scratch, [&](int64_t block, int64_t i, __m512 gates) {
    const auto mask = first_lanes(least(gate.rows - block * kTileRows, kTileRows));
    _mm512_mask_storeu_ps(plan.hidden_values + (begin + i) * plan.I + row + block * kTileRows, mask, gates);
  });
  DigitPanel up = panel_of(expert.w3, row);
  if (next != nullptr) reads_after(up, *next, next_row);
  stream_digits(up, z, count, scratch, [&](int64_t block, int64_t i, __m512 ups) {
    const auto mask = first_lanes(least(up.rows - block * kTileRows, kTileRows));
    float* hidden = plan.hidden_values + (begin + i) * plan.I + row + block * kTileRows;
    const Vec gates{_mm512_maskz_loadu_ps(mask, hidden)};
    _mm512_mask_storeu_ps(hidden, mask, gated_activation(plan.act, gates, Vec{ups}).v);
  });
}

void run_hidden_task(const DigitExperts& plan, int64_t task, int thread, bool is_next_ours) {
  const TileScope scope;
  const int64_t row_tasks = tiles_of(plan.I, kPanelRows);
  const WeightView* next = is_next_ours ? &plan.experts[plan.groups.active[(task + 1) / row_tasks]].w1 : nullptr;
  run_hidden(plan, task / row_tasks, task % row_tasks * kPanelRows, next, (task + 1) % row_tasks * kPanelRows, thread);
}

void add_pair(const DigitExperts& plan, int64_t pair, int64_t row, __mmask16 mask, __m512 values) {
  const int64_t token = plan.groups.first_token + pair / plan.k;
  const __m512 weight = _mm512_set1_ps(row_of(plan.args->topk_weights, token)[pair % plan.k]);
  float* out = row_of(plan.args->out, token) + row;
  _mm512_mask_storeu_ps(out, mask, _mm512_fmadd_ps(weight, values, _mm512_maskz_loadu_ps(mask, out)));
}

// out[token][row …] += w · (W2 hidden) for 32 rows, all experts in order.
void run_combine(const DigitExperts& plan, int64_t tokens, int64_t row, int thread) {
  const TileScope scope;
  const int64_t end = least(row + kPanelRows, plan.Dl);
  for (int64_t t = 0; t < tokens && !plan.args->add_to_out; ++t) {
    float* out = row_of(plan.args->out, plan.groups.first_token + t);
    for (int64_t r = row; r < end; ++r) out[r] = 0.f;
  }
  for (int64_t index = 0; index < plan.groups.num_active; ++index) {
    // After the last expert this thread goes on with the first one's next rows.
    const bool is_last = index + 1 == plan.groups.num_active;
    const WeightView& next = plan.experts[plan.groups.active[is_last ? 0 : index + 1]].w2;
    const int64_t begin = plan.groups.pair_begin[index];
    DigitPanel panel = panel_of(plan.experts[plan.groups.active[index]].w2, row);
    reads_after(panel, next, is_last && end < plan.Dl ? end : row);
    stream_digits(panel, plan.hidden + begin, plan.groups.pair_begin[index + 1] - begin,
                  plan.scratch + thread * plan.scratch_per_thread, [&](int64_t block, int64_t i, __m512 values) {
                    const auto mask = first_lanes(least(panel.rows - block * kTileRows, kTileRows));
                    add_pair(plan, plan.groups.pair[begin + i], row + block * kTileRows, mask, values);
                  });
  }
}

// body(i) for i in [0, count), over the threads when there is enough to do.
template <class Body>
void for_rows(const ExecContext& ctx, int64_t count, int64_t columns, const Body& body) {
  constexpr int64_t kSmall = 1 << 12;  // values that are not worth waking threads for
  if (count * columns <= kSmall) {
    for (int64_t i = 0; i < count; ++i) body(i);
  } else {
    ctx.pool.parallel_for(count, [&](int64_t i, int) { body(i); });
  }
}

void run_tokens(const ExecContext& ctx, const DigitExperts& plan, int64_t tokens) {
  for_rows(ctx, tokens, plan.Dl, [&](int64_t t) {
    plan.z[t] = pack_digits(row_of(plan.args->z, plan.groups.first_token + t), plan.Dl,
                            plan.z_digits + t * steps_of(plan.Dl) * kStepBytes);
  });
  for_each_task_in_runs(
      ctx, plan.groups.num_active * tiles_of(plan.I, kPanelRows),
      [&](int64_t task, int thread, bool is_next_ours) { run_hidden_task(plan, task, thread, is_next_ours); });
  for_rows(ctx, plan.groups.pair_begin[plan.groups.num_active], plan.I, [&](int64_t i) {
    plan.hidden[i] =
        pack_digits(plan.hidden_values + i * plan.I, plan.I, plan.hidden_digits + i * steps_of(plan.I) * kStepBytes);
  });
  for_each_task_in_runs(ctx, tiles_of(plan.Dl, kPanelRows),
                        [&](int64_t task, int thread, bool) { run_combine(plan, tokens, task * kPanelRows, thread); });
}

bool are_mxfp4(const MoeExpertsArgs& a) {
  if (a.expert_act != ExpertAct::kF32) return false;
  const ExpertWeights* experts = a.experts.data();
  const auto count = static_cast<int64_t>(a.experts.size());
  for (int64_t e = a.expert_begin; e < least(count, a.expert_end); ++e) {
    if (experts[e].w1.format != WeightFormat::kMxfp4 || experts[e].w3.format != WeightFormat::kMxfp4 ||
        experts[e].w2.format != WeightFormat::kMxfp4) {
      return false;
    }
  }
  return true;
}

}  // namespace

namespace amx {

void moe_experts(const ExecContext& ctx, const MoeExpertsArgs& a) {
  if (!are_mxfp4(a)) return avx512::moe_experts(ctx, a);
  const int64_t T = a.z.shape[0];
  const auto E = static_cast<int64_t>(a.experts.size());
  const int threads = ctx.pool.num_threads();
  DigitExperts plan{};
  plan.args = &a;
  plan.experts = a.experts.data();
  plan.act = act_constants(a.act);
  plan.Dl = a.z.shape[1];
  plan.I = plan.experts[0].w1.rows;
  plan.k = a.topk_ids.shape[1];
  const int64_t z_bytes = steps_of(plan.Dl) * kStepBytes;
  const int64_t hidden_bytes = steps_of(plan.I) * kStepBytes;
  int64_t block = least(kPackedBudgetBytes / (z_bytes + plan.k * hidden_bytes), T);
  if (block < 1) block = 1;
  plan.most_pairs = block * plan.k;
  Scratch scratch(ctx.arena);
  plan.groups.active = scratch.ints(E);
  plan.groups.pair_begin = scratch.ints(E + 1);
  plan.groups.pair = scratch.ints(plan.most_pairs);
  const auto token_bytes = static_cast<int64_t>(sizeof(DigitToken));
  plan.z = static_cast<DigitToken*>(scratch.bytes(block * token_bytes));
  plan.hidden = static_cast<DigitToken*>(scratch.bytes(plan.most_pairs * token_bytes));
  plan.inputs = static_cast<DigitToken*>(scratch.bytes(threads * plan.most_pairs * token_bytes));
  plan.z_digits = static_cast<char*>(scratch.bytes(block * z_bytes));
  plan.hidden_digits = static_cast<char*>(scratch.bytes(plan.most_pairs * hidden_bytes));
  plan.hidden_values = scratch.floats(plan.most_pairs * plan.I);
  plan.scratch_per_thread = digit_scratch_bytes(plan.most_pairs);
  plan.scratch = static_cast<char*>(scratch.bytes(plan.scratch_per_thread * threads));
  int32_t* count = scratch.ints(E);
  for (int64_t first = 0; first < T; first += block) {
    const int64_t tokens = least(T - first, block);
    plan.groups.first_token = first;
    group_by_expert(plan.groups, a, tokens, count);
    run_tokens(ctx, plan, tokens);
  }
}

}  // namespace amx
}  // namespace tandem
