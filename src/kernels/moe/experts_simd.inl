// kernels/moe/experts_simd.inl (TANDEM_SET: the including backend): the routed experts in two passes over the (token,
// slot) pairs grouped by expert.
//
//   1  task (expert, block of W1/W3 rows):  hidden[pair][rows] = act(W1 z, W3 z), rounded to MXFP8 if asked
//   2  task (block of W2 rows):             for every expert in ascending order  out[token][rows] += w · (W2 hidden)
//
//   Both passes have enough tasks for all threads with one token already. Pass 2 owns its columns of `out`, so a
//   token's sum over its experts runs in one fixed order without a buffer for each pair. `hidden` is the only large
//   scratch; tokens are taken in blocks that bound it.
#include "kernels/activation/gated_act_rows.h"
#include "kernels/backend_entries.h"
#include "kernels/moe/expert_groups.h"
#include "kernels/simd/mxfp8_rows.h"
#include "kernels/simd/scratch.h"
#include "kernels/simd/task_runs.h"
#include "kernels/simd/weight_product.h"
#include "kernels/simd/weight_rows.h"

namespace tandem {
namespace {

using namespace simd;

constexpr int64_t kHiddenBudgetBytes = int64_t{64} << 20;

// Everything the tasks of one block of tokens share.
struct ExpertPlan {
  const MoeExpertsArgs* args;
  const ExpertWeights* experts;
  ActConstants act;
  int64_t Dl, I, k;
  const float* z;  // [tokens, Dl] in column order (stride z_stride), rounded if MXFP8
  int64_t z_stride;
  const float* split_z;  // the same in even/odd order, or null when no W1/W3 is MXFP4
  ExpertGroups groups;
  float* hidden;  // [pairs, I]; even/odd order where the expert's W2 is MXFP4
  float* scratch;
  int64_t scratch_per_thread;
  int64_t product_floats;
};

bool is_mxfp4(const WeightView& weight) { return weight.format == WeightFormat::kMxfp4; }

int64_t rows_per_task(int64_t rows, int64_t other_tasks, int threads, int64_t multiple) {
  int64_t wanted = rows * other_tasks / (4 * threads);
  wanted = (wanted + multiple - 1) / multiple * multiple;
  if (wanted < multiple) wanted = multiple;
  return wanted < kRowBlock ? wanted : kRowBlock;
}

const void* row_start(const WeightView& weight, int64_t row) {
  return static_cast<const char*>(weight.data) + row * row_bytes(weight.format, weight.cols);
}

Product product_of(const WeightView& weight, int64_t row_begin, int64_t row_end, int64_t num_tokens,
                   const float* const* x, float* const* y, float* scratch, const void* next) {
  return {weight.data, weight.scale, weight.cols, row_begin, row_end, num_tokens, x, y, scratch, next};
}

// hidden[pair][rows] for pairs [first, first + count) of one expert; rows is a block of at most kRowBlock. `next` is
// the W1 block that comes after this one.
void hidden_block(const ExpertPlan& plan, const ExpertWeights& expert, int64_t row_begin, int64_t row_end,
                  int64_t first, int64_t count, float* scratch, const void* next) {
  const int64_t rows = row_end - row_begin;
  float* gate = scratch + plan.product_floats;
  float* up = gate + kTokenBlock * kRowBlock;
  const float* x1[kTokenBlock];
  const float* x3[kTokenBlock];
  float* y1[kTokenBlock];
  float* y3[kTokenBlock];
  for (int64_t i = 0; i < count; ++i) {
    const int64_t token = plan.groups.pair[first + i] / plan.k;
    x1[i] = is_mxfp4(expert.w1) ? plan.split_z + token * plan.Dl : plan.z + token * plan.z_stride;
    x3[i] = is_mxfp4(expert.w3) ? plan.split_z + token * plan.Dl : plan.z + token * plan.z_stride;
    y1[i] = gate + i * kRowBlock;
    y3[i] = up + i * kRowBlock;
  }
  TANDEM_SET::weight_product(expert.w1.format, product_of(expert.w1, row_begin, row_end, count, x1, y1, scratch,
                                                          row_start(expert.w3, row_begin)));
  TANDEM_SET::weight_product(expert.w3.format, product_of(expert.w3, row_begin, row_end, count, x3, y3, scratch, next));
  for (int64_t i = 0; i < count; ++i) {
    for_each_block(rows, [&](int64_t r, auto block) TANDEM_INLINE_LAMBDA {
      store(y1[i] + r, gated_activation(plan.act, load(y1[i] + r, block), load(y3[i] + r, block)), block);
    });
    if (plan.args->expert_act == ExpertAct::kMxfp8) mxfp8_round_row(y1[i], rows, y1[i]);
    float* hidden = plan.hidden + (first + i) * plan.I + row_begin;
    if (is_mxfp4(expert.w2)) {
      split_even_odd(y1[i], rows, hidden);
    } else {
      __builtin_memcpy(hidden, y1[i], static_cast<size_t>(rows) * sizeof(float));
    }
  }
}

void run_hidden_task(const ExpertPlan& plan, int64_t task, int64_t rows_each, int thread, bool is_next_ours) {
  const int64_t blocks = (plan.I + rows_each - 1) / rows_each;
  const int64_t index = task / blocks;
  const int64_t row_begin = task % blocks * rows_each;
  const int64_t row_end = row_begin + rows_each < plan.I ? row_begin + rows_each : plan.I;
  float* scratch = plan.scratch + thread * plan.scratch_per_thread;
  const void* next = nullptr;
  if (is_next_ours) {
    next = row_start(plan.experts[plan.groups.active[(task + 1) / blocks]].w1, (task + 1) % blocks * rows_each);
  }
  for (int64_t first = plan.groups.pair_begin[index]; first < plan.groups.pair_begin[index + 1]; first += kTokenBlock) {
    const int64_t left = plan.groups.pair_begin[index + 1] - first;
    hidden_block(plan, plan.experts[plan.groups.active[index]], row_begin, row_end, first,
                 left < kTokenBlock ? left : kTokenBlock, scratch, next);
  }
}

// out[token][rows] += w · (W2 hidden)[rows] for pairs [first, first + count) of one expert.
void combine_block(const ExpertPlan& plan, const ExpertWeights& expert, int64_t row_begin, int64_t row_end,
                   int64_t first, int64_t count, float* scratch, const void* next) {
  const int64_t rows = row_end - row_begin;
  float* down = scratch + plan.product_floats;
  const float* x[kTokenBlock];
  float* y[kTokenBlock];
  for (int64_t i = 0; i < count; ++i) {
    x[i] = plan.hidden + (first + i) * plan.I;
    y[i] = down + i * kRowBlock;
  }
  TANDEM_SET::weight_product(expert.w2.format, product_of(expert.w2, row_begin, row_end, count, x, y, scratch, next));
  for (int64_t i = 0; i < count; ++i) {
    const int32_t pair = plan.groups.pair[first + i];
    const int64_t token = plan.groups.first_token + pair / plan.k;
    const Vec weight = broadcast(row_of(plan.args->topk_weights, token)[pair % plan.k]);
    float* out = row_of(plan.args->out, token) + row_begin;
    for_each_block(rows, [&](int64_t r, auto block) TANDEM_INLINE_LAMBDA {
      store(out + r, load(out + r, block) + weight * load(y[i] + r, block), block);
    });
  }
}

void run_combine_task(const ExpertPlan& plan, int64_t tokens, int64_t task, int64_t rows_each, int thread) {
  const int64_t row_begin = task * rows_each;
  const int64_t row_end = row_begin + rows_each < plan.Dl ? row_begin + rows_each : plan.Dl;
  float* scratch = plan.scratch + thread * plan.scratch_per_thread;
  for (int64_t t = 0; t < tokens && !plan.args->add_to_out; ++t) {
    float* out = row_of(plan.args->out, plan.groups.first_token + t);
    for (int64_t r = row_begin; r < row_end; ++r) out[r] = 0.f;
  }
  for (int64_t index = 0; index < plan.groups.num_active; ++index) {
    // After the last expert this thread goes on with the first one's next rows.
    const int64_t after = index + 1 < plan.groups.num_active ? index + 1 : 0;
    const int64_t row = after > 0 || row_end == plan.Dl ? row_begin : row_end;
    const void* next = row_start(plan.experts[plan.groups.active[after]].w2, row);
    for (int64_t first = plan.groups.pair_begin[index]; first < plan.groups.pair_begin[index + 1];
         first += kTokenBlock) {
      const int64_t left = plan.groups.pair_begin[index + 1] - first;
      combine_block(plan, plan.experts[plan.groups.active[index]], row_begin, row_end, first,
                    left < kTokenBlock ? left : kTokenBlock, scratch, next);
    }
  }
}

// The input of W1 and W3 in the orders that some active expert reads.
void prepare_inputs(const ExecContext& ctx, ExpertPlan& plan, int64_t tokens, float* rounded, float* split) {
  const MoeExpertsArgs& a = *plan.args;
  bool any_split = false;
  for (int64_t i = 0; i < plan.groups.num_active; ++i) {
    const ExpertWeights& expert = plan.experts[plan.groups.active[i]];
    any_split |= is_mxfp4(expert.w1) || is_mxfp4(expert.w3);
  }
  const bool round = a.expert_act == ExpertAct::kMxfp8;
  plan.z = round ? rounded : row_of(a.z, plan.groups.first_token);
  plan.z_stride = round ? plan.Dl : a.z.stride[0];
  plan.split_z = any_split ? split : nullptr;
  if (!round && !any_split) return;
  for_each_row(ctx, tokens, 2 * plan.Dl, [&](int64_t t, int) {
    const float* z = row_of(a.z, plan.groups.first_token + t);
    if (round) {
      mxfp8_round_row(z, plan.Dl, rounded + t * plan.Dl);
      z = rounded + t * plan.Dl;
    }
    if (any_split) split_even_odd(z, plan.Dl, split + t * plan.Dl);
  });
}

void run_token_block(const ExecContext& ctx, ExpertPlan& plan, int64_t tokens) {
  const int threads = ctx.pool.num_threads();
  // Blocks of 32 rows keep the groups of MXFP8 and of the even/odd order whole.
  const int64_t hidden_rows = rows_per_task(plan.I, plan.groups.num_active, threads, kGroup);
  const int64_t hidden_tasks = plan.groups.num_active * ((plan.I + hidden_rows - 1) / hidden_rows);
  for_each_task_in_runs(ctx, hidden_tasks, [&](int64_t task, int thread, bool is_next_ours) {
    run_hidden_task(plan, task, hidden_rows, thread, is_next_ours);
  });
  const int64_t out_rows = rows_per_task(plan.Dl, 1, threads, 8);
  for_each_task_in_runs(ctx, (plan.Dl + out_rows - 1) / out_rows, [&](int64_t task, int thread, bool) {
    run_combine_task(plan, tokens, task, out_rows, thread);
  });
}

void moe_experts_simd(const ExecContext& ctx, const MoeExpertsArgs& a) {
  const int64_t T = a.z.shape[0];
  const auto E = static_cast<int64_t>(a.experts.size());
  const int threads = ctx.pool.num_threads();
  ExpertPlan plan{};
  plan.args = &a;
  plan.experts = a.experts.data();
  plan.act = act_constants(a.act);
  plan.Dl = a.z.shape[1];
  plan.I = plan.experts[0].w1.rows;
  plan.k = a.topk_ids.shape[1];

  int64_t block = kHiddenBudgetBytes / (plan.k * plan.I * static_cast<int64_t>(sizeof(float)));
  block = block < 1 ? 1 : (block < T ? block : T);
  const int64_t most_per_expert = block * plan.k;
  const int64_t widest = plan.Dl > plan.I ? plan.Dl : plan.I;
  Scratch scratch(ctx.arena);
  plan.groups.active = scratch.ints(E);
  plan.groups.pair_begin = scratch.ints(E + 1);
  plan.groups.pair = scratch.ints(block * plan.k);
  plan.hidden = scratch.floats(block * plan.k * plan.I);
  plan.product_floats = TANDEM_SET::product_scratch_floats(widest, most_per_expert);
  plan.scratch_per_thread = plan.product_floats + 2 * kTokenBlock * kRowBlock;
  plan.scratch = scratch.floats(plan.scratch_per_thread * threads);
  int32_t* count = scratch.ints(E);
  float* rounded = scratch.floats(a.expert_act == ExpertAct::kMxfp8 ? block * plan.Dl : 0);
  float* split = scratch.floats(block * plan.Dl);
  for (int64_t first = 0; first < T; first += block) {
    const int64_t tokens = T - first < block ? T - first : block;
    plan.groups.first_token = first;
    group_by_expert(plan.groups, a, tokens, count);
    prepare_inputs(ctx, plan, tokens, rounded, split);
    run_token_block(ctx, plan, tokens);
  }
}

}  // namespace
}  // namespace tandem
