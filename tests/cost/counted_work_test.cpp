// FLOPs and bytes of a step: written out for k3-mini, and counted from the operators that running models call.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/cat.h"
#include "cache/sequence_cache.h"
#include "cost/cost_support.h"
#include "model/random_model.h"
#include "support/effort.h"

namespace tandem {
namespace {

using test::BackendFixture;
using test::cost_of_config;
using test::random_shape;
using test::random_tokens;
using test::RandomModel;
using test::relative;
using test::SmallShape;

// k3-mini by hand. Matrices of a KDA layer 5 390 336 parameters, of an MLA layer 4 128 768 (latent 327 680, kv_b
// 524 288), of an MoE layer's trunk 4 259 840, of the dense layer 12 582 912, of an expert 786 432, of the head
// 33 554 432; layer 16 is MLA with experts.
constexpr double kTrunk = 157'679'616, kHead = 33'554'432, kExpert = 786'432, kKvB = 524'288;
constexpr double kLast = 4'128'768 - 327'680 - kKvB + 4'259'840;  // of layer 16, behind its cache

TEST(CountedWork, OfAPromptOfK3Mini) {
  const ModelCost mini = cost_of_config("k3-mini.json", DType::kF32);
  EXPECT_EQ(mini.weights.trunk.parameters, kTrunk);
  EXPECT_EQ(mini.weights.last_behind_cache.parameters, kLast);
  EXPECT_EQ(mini.weights.last_kv_b.parameters, kKvB);

  // One step: of layer 16 the last of 512 rows alone behind the cache.
  const StepCost one = prefill_cost(mini, 0, 512, 512);
  EXPECT_EQ(one.trunk_flops, 153'761'480'704);
  EXPECT_EQ(one.trunk_flops, 2 * (kTrunk * 512 - kLast * 511));
  EXPECT_EQ(one.head_flops, 2 * kHead);
  EXPECT_EQ(one.expert_flops, 2 * 8 * kExpert * (14 * 512 + 1));
  EXPECT_EQ(one.kda_flops, 7.0 * 12 * 16 * 64 * 64 * 512);
  EXPECT_EQ(one.mla_flops, 2 * 192.0 * 16 * (3 * 512 * 256 + 511.5));
  EXPECT_EQ(one.flops(), 249'273'119'744);
  EXPECT_EQ(one.head_bytes, 2 * kHead);
  EXPECT_EQ(one.trunk_bytes, 2 * kTrunk);

  // Four steps: the first three write caches and compute nothing behind those of layer 16.
  const StepCost four = prefill_cost(mini, 0, 512, 128);
  EXPECT_EQ(four.trunk_flops, one.trunk_flops - 2 * (kLast + kKvB) * 384 + 2 * kLast * 384);
  EXPECT_EQ(four.head_flops, 2 * kHead);
  EXPECT_EQ(four.expert_flops, one.expert_flops);
  EXPECT_EQ(four.flops(), 251'689'038'848);
  EXPECT_EQ(four.head_bytes, 2 * kHead);
  EXPECT_EQ(four.trunk_bytes, 4 * 2 * kTrunk - 3 * 2 * (kLast + kKvB));
  // Latents of the tokens before: 320 floats in each layer that reads them.
  EXPECT_EQ(four.latent_bytes, 320.0 * 4 * (3 * (128 + 256 + 384) + 384));

  // Every row with logits: nothing is left out, and the head for each.
  const StepCost all = prefill_cost(mini, 0, 512, 512, PromptLogits::kAll);
  EXPECT_EQ(all.trunk_flops, 2 * kTrunk * 512);
  EXPECT_EQ(all.head_flops, 2 * kHead * 512);
  EXPECT_EQ(all.expert_flops, 2 * 8 * kExpert * 15 * 512);
  EXPECT_EQ(all.flops(), 298'500'227'072);

  // None: a prefix of a longer prompt.
  const StepCost none = prefill_cost(mini, 0, 512, 512, PromptLogits::kNone);
  EXPECT_EQ(none.head_flops, 0);
  EXPECT_EQ(none.head_bytes, 0);
  EXPECT_EQ(none.trunk_flops, 2 * (kTrunk - kLast - kKvB) * 512);
  EXPECT_EQ(none.expert_flops, 2 * 8 * kExpert * 14 * 512);
}

// A token of each sequence: all rows have logits.
TEST(CountedWork, OfADecodeStepOfK3Mini) {
  const ModelCost mini = cost_of_config("k3-mini.json", DType::kF32);
  const StepCost step = decode_cost(mini, 100, 3);
  EXPECT_EQ(step.trunk_flops, 2 * kTrunk * 3);
  EXPECT_EQ(step.head_flops, 2 * kHead * 3);
  EXPECT_EQ(step.expert_flops, 2 * 8 * kExpert * 15 * 3);
  EXPECT_EQ(step.mla_flops, 2.0 * (320 + 256) * 16 * 4 * 100 * 3);
  EXPECT_EQ(step.trunk_bytes, 2 * kTrunk);
}

// What the operators of a step are asked for, summed up on their way to the kernels.
struct Work {
  double matrix_flops = 0;  // trunk, head and experts
  double matrix_bytes = 0;  // trunk and head: matrices that meet a row
  double kda_flops = 0;
  double mla_flops = 0;
};

const KernelTable* inner = nullptr;
Work work;

void add_matrix(const WeightView& weight, int64_t rows) {
  if (rows == 0) return;
  work.matrix_flops += 2.0 * static_cast<double>(weight.rows * weight.cols * rows);
  work.matrix_bytes += static_cast<double>(weight.total_bytes());
}

void count_linear(const ExecContext& ctx, const LinearArgs& args) {
  for (const LinearOutput& output : args.outputs) add_matrix(output.weight, args.x.shape[0]);
  inner->linear(ctx, args);
}

void count_experts(const ExecContext& ctx, const MoeExpertsArgs& args) {
  const ExpertWeights& expert = args.experts[0];
  const int64_t pairs = args.topk_ids.shape[0] * args.topk_ids.shape[1];
  for (const WeightView* weight : {&expert.w1, &expert.w2, &expert.w3}) {
    work.matrix_flops += 2.0 * static_cast<double>(weight->rows * weight->cols * pairs);
  }
  inner->moe_experts(ctx, args);
}

void count_kda(const KdaArgs& args) {
  for (const KdaSegment& segment : args.segments) {
    work.kda_flops += 7.0 * static_cast<double>(segment.num_rows * args.k.shape[1] * args.k.shape[2] * args.v.shape[2]);
  }
}
void count_chunked(const ExecContext& ctx, const KdaArgs& args) {
  count_kda(args);
  inner->kda_chunked(ctx, args);
}
void count_recurrent(const ExecContext& ctx, const KdaArgs& args) {
  count_kda(args);
  inner->kda_recurrent(ctx, args);
}

// Keys and values of every token of the context from its latent; of the step's own tokens this is kv_b as a matrix.
void count_expanded(const ExecContext& ctx, const MlaArgs& args) {
  const double heads = static_cast<double>(args.q.shape[1]);
  const double pair = 2.0 * static_cast<double>(args.q.shape[2] + args.v_head_dim);
  for (const MlaSegment& segment : args.segments) {
    const auto rows = static_cast<double>(segment.num_rows);
    const auto length = static_cast<double>(segment.latents.length);
    work.mla_flops += heads * pair * rows * (length - rows / 2);
    add_matrix(args.kv_b, segment.latents.length);
  }
  inner->mla_expanded(ctx, args);
}

Work counted(const RandomModel& model, SequenceCache& cache, int64_t rows, LogitsWanted logits) {
  BackendFixture backend(KernelBackend::kPortable);
  inner = &backend.ctx().kernels;
  KernelTable table = *inner;
  table.linear = count_linear;
  table.moe_experts = count_experts;
  table.kda_chunked = count_chunked;
  table.kda_recurrent = count_recurrent;
  table.mla_expanded = count_expanded;
  const ExecContext ctx{backend.ctx().pool, backend.ctx().arena, table};
  EXPECT_TRUE(cache.reserve(cache.length() + rows).is_ok());
  StepPlan plan;
  plan.tokens = random_tokens(rows, model.config().vocab_size, 5);
  plan.sequences.push_back({.cache = 0,
                            .num_tokens = rows,
                            .num_computed_tokens = cache.length(),
                            .mode = StepMode::kPrefill,
                            .logits = logits,
                            .captures = {}});
  const std::vector<SequenceCacheView> views = {cache.view()};
  work = {};
  const auto result = model.model().forward(ctx, plan, views);
  EXPECT_TRUE(result.is_ok()) << result.status().message();
  return work;
}

void expect_equal(double predicted, double measured, std::string_view what) {
  EXPECT_LT(std::abs(predicted - measured), 1e-9 * std::max(measured, 1.0))
      << what << ": " << predicted << ", counted " << measured;
}

// A prompt in two steps, in every variant of the model.
TEST(CountedWork, IsWhatTheOperatorsAreAskedFor) {
  const std::pair<LogitsWanted, PromptLogits> kinds[] = {{LogitsWanted::kNone, PromptLogits::kNone},
                                                         {LogitsWanted::kLast, PromptLogits::kLast},
                                                         {LogitsWanted::kAll, PromptLogits::kAll}};
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(test::effort(24)); ++seed) {
    const SmallShape shape = random_shape(seed);
    const RandomModel model(shape, seed);
    const ModelCost cost{.config = model.config(),
                         .weights = bound_weight_sizes(model.weights()),
                         .cache = make_cache_layout(model.config(), DType::kF32, 16),
                         .path = AttentionPath::kFast};
    for (const auto& [logits, prompt_logits] : kinds) {
      SCOPED_TRACE(cat("seed ", seed, " ", shape.json(), ", logits ", static_cast<int>(logits)));
      SequenceCache cache = model.new_cache();
      for (const auto& [past, rows] : {std::pair<int64_t, int64_t>{0, 7}, {7, 5}}) {
        const Work measured = counted(model, cache, rows, logits);
        const StepCost predicted = prefill_cost(cost, past, rows, rows, prompt_logits);
        // Rebuilding the past's keys and values is a part of MLA here, and a matrix product there.
        expect_equal(predicted.flops(), measured.matrix_flops + measured.kda_flops + measured.mla_flops, "FLOPs");
        expect_equal(predicted.kda_flops, measured.kda_flops, "KDA");
        expect_equal(predicted.trunk_bytes + predicted.head_bytes, measured.matrix_bytes, "bytes");
      }
    }
  }
}

}  // namespace
}  // namespace tandem
