// Predicted memory against models that run: weights, caches, and the peak of the step arena, from above within 15 %.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/cat.h"
#include "cache/sequence_cache.h"
#include "cost/cache_memory.h"
#include "cost/step_scratch.h"
#include "model/random_model.h"
#include "support/effort.h"
#include "support/golden.h"
#include "weights/checkpoint.h"

namespace tandem {
namespace {

using test::BackendFixture;
using test::for_each_backend;
using test::random_shape;
using test::RandomModel;
using test::SmallShape;

ModelCost cost_of(const ModelConfig& config, const ModelWeights& weights, DType dtype) {
  return {.config = config,
          .weights = bound_weight_sizes(weights),
          .cache = make_cache_layout(config, dtype),
          .path = AttentionPath::kFast};
}

void expect_same(const WeightSizes& a, const WeightSizes& b) {
  const auto same = [](const WeightAmount& x, const WeightAmount& y, std::string_view what) {
    EXPECT_EQ(x.bytes, y.bytes) << what;
    EXPECT_EQ(x.parameters, y.parameters) << what;
  };
  same(a.trunk, b.trunk, "trunk");
  same(a.head, b.head, "head");
  same(a.expert, b.expert, "expert");
  EXPECT_EQ(a.num_matrices, b.num_matrices);
  EXPECT_EQ(a.num_experts(), b.num_experts());
}

int64_t vector_bytes(const ModelWeights& weights) {
  int64_t floats = 0;
  const auto add = [&](const std::vector<float>& values) { floats += static_cast<int64_t>(values.size()); };
  for (const LayerWeights& layer : weights.layers) {
    add(layer.input_layernorm);
    add(layer.post_attention_layernorm);
    add(layer.self_attention_res);
    add(layer.mlp_res);
    if (const auto* kda = std::get_if<KdaLayerWeights>(&layer.attention)) {
      for (const auto* v : {&kda->conv_weight, &kda->a_log, &kda->dt_bias, &kda->o_norm}) add(*v);
    } else {
      const auto& mla = std::get<MlaLayerWeights>(layer.attention);
      add(mla.q_a_layernorm);
      add(mla.kv_a_layernorm);
    }
    if (const auto* moe = std::get_if<MoeLayerWeights>(&layer.feed_forward)) {
      add(moe->e_score_correction_bias);
      add(moe->latent_norm);
    }
  }
  add(weights.output_attn_res);
  add(weights.norm);
  return floats * 4;
}

TEST(HeldToModels, WeightsAsReleasedAsStoredAndAsBound) {
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(test::effort(24)); ++seed) {
    const SmallShape shape = random_shape(seed);
    SCOPED_TRACE(cat("seed ", seed, " ", shape.json()));
    const RandomModel model(shape, seed);
    const auto checkpoint = Checkpoint::open(model.dir(), Checkpoint::Mode::kHeadersOnly);
    ASSERT_TRUE(checkpoint.is_ok()) << checkpoint.status().message();
    const auto stored = stored_weight_sizes(checkpoint.value(), model.config());
    ASSERT_TRUE(stored.is_ok()) << stored.status().message();
    expect_same(stored.value(), bound_weight_sizes(model.weights()));
    EXPECT_EQ(stored.value().file_bytes, static_cast<int64_t>(checkpoint.value().total_bytes()));
    EXPECT_EQ(stored.value().vector_bytes, vector_bytes(model.weights()));
    if (!shape.stored) expect_same(stored.value(), released_weight_sizes(model.config()));
  }
}

// The same shape in f32 has twice the trunk; what counts is what is stored.
TEST(HeldToModels, TheStoredTypeDecides) {
  SmallShape shape;
  const RandomModel released(shape, 1);
  shape.stored = DType::kF32;
  const RandomModel wide(shape, 1);
  EXPECT_EQ(bound_weight_sizes(wide.weights()).trunk.bytes, 2 * bound_weight_sizes(released.weights()).trunk.bytes);
  EXPECT_EQ(bound_weight_sizes(wide.weights()).expert.bytes, bound_weight_sizes(released.weights()).expert.bytes);
}

TEST(HeldToModels, ASequenceAlone) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const RandomModel model(random_shape(seed), seed);
      const ModelCost cost = cost_of(model.config(), model.weights(), dtype);
      for (const int64_t tokens : {1, 64, 65, 1000}) {
        SequenceCache cache(cost.cache);
        ASSERT_TRUE(cache.reserve(tokens).is_ok());
        const auto memory = cache_memory(cost, tokens, 128);
        ASSERT_TRUE(memory.is_ok()) << memory.status().message();
        EXPECT_EQ(memory.value().alone.total(), cache.bytes()) << "seed " << seed << ", " << tokens << " tokens";
        EXPECT_GE(memory.value().pooled.padding, 0);
        EXPECT_EQ(memory.value().pooled.total(), memory.value().pool_blocks * memory.value().pool->block_bytes());
      }
    }
  }
}

// One step of prompts of `tokens` each after `past` tokens, and of `decoded` sequences after as many.
struct Step {
  int64_t prompts;
  int64_t tokens;
  int64_t decoded;
  int64_t past;
  LogitsWanted logits = LogitsWanted::kLast;
};

int64_t logit_rows(const Step& step) {
  if (step.logits == LogitsWanted::kNone) return step.decoded;
  return (step.logits == LogitsWanted::kAll ? step.prompts * step.tokens : step.prompts) + step.decoded;
}

void run(const ExecContext& ctx, const Model& model, std::vector<SequenceCache>& caches, const Step& step) {
  StepPlan plan;
  std::vector<SequenceCacheView> views;
  for (SequenceCache& cache : caches) {
    const bool is_prompt = static_cast<int64_t>(views.size()) < step.prompts;
    const int64_t tokens = is_prompt ? step.tokens : 1;
    ASSERT_TRUE(cache.reserve(cache.length() + tokens).is_ok());
    for (int64_t i = 0; i < tokens; ++i) plan.tokens.emplace_back(static_cast<int32_t>((7 * i + 3) % 61));
    plan.sequences.push_back({.cache = static_cast<int64_t>(views.size()),
                              .num_tokens = tokens,
                              .num_computed_tokens = cache.length(),
                              .mode = is_prompt ? StepMode::kPrefill : StepMode::kDecode,
                              .logits = is_prompt ? step.logits : LogitsWanted::kLast,
                              .captures = {}});
    views.push_back(cache.view());
  }
  const auto result = model.forward(ctx, plan, views);
  ASSERT_TRUE(result.is_ok()) << result.status().message();
}

// Never below the arena's peak, and at most 15 % above.
void expect_scratch(KernelBackend backend, int threads, const Model& model, const ModelCost& cost, const Step& step) {
  SCOPED_TRACE(cat(step.prompts, " prompts of ", step.tokens, " and ", step.decoded, " decoded, after ", step.past,
                   " each, logits ", static_cast<int>(step.logits), ", ", threads, " threads"));
  std::vector<SequenceCache> caches;
  for (int64_t s = 0; s < step.prompts + step.decoded; ++s) caches.emplace_back(cost.cache);
  if (step.past > 0) {
    BackendFixture before(backend, threads);
    run(before.ctx(), model, caches, {step.prompts + step.decoded, step.past, 0, 0, LogitsWanted::kNone});
  }
  BackendFixture fresh(backend, threads);  // its arena has seen nothing
  run(fresh.ctx(), model, caches, step);
  StepShape shape;
  shape.prompt_rows = step.prompts * step.tokens;
  shape.prompts = step.prompts;
  shape.decode_rows = step.decoded;
  shape.logit_rows = logit_rows(step);
  shape.context = step.past + std::max<int64_t>(step.prompts > 0 ? step.tokens : 0, 1);
  shape.threads = threads;
  shape.kernels = backend;
  const StepScratch predicted = step_scratch(cost, shape);
  const auto measured = static_cast<int64_t>(fresh.ctx().arena.peak_bytes());
  EXPECT_GE(predicted.peak_bytes, measured);
  EXPECT_LE(static_cast<double>(predicted.peak_bytes), 1.15 * static_cast<double>(measured));
  EXPECT_GE(predicted.touched_bytes, predicted.peak_bytes);
  EXPECT_GE(predicted.reserved_bytes, predicted.touched_bytes);
  EXPECT_EQ(predicted.reserved_bytes, static_cast<int64_t>(fresh.ctx().arena.capacity_bytes()));
  EXPECT_EQ(predicted.peak_bytes, predicted.residual_bytes + predicted.layer_bytes);
}

constexpr Step kSteps[] = {{1, 96, 0, 0},
                           {1, 33, 0, 80},
                           {2, 40, 0, 16},
                           {0, 0, 1, 100},
                           {0, 0, 9, 20},
                           {1, 50, 5, 140},
                           {1, 40, 0, 8, LogitsWanted::kNone},
                           {3, 20, 1, 8, LogitsWanted::kAll}};

// Widths like k3-mini's in proportion; random variants of every option.
TEST(HeldToModels, ArenaOfRandomModels) {
  SmallShape like_mini;
  like_mini.layers = 8;
  like_mini.mla_layers = {3, 7};
  like_mini.hidden = 256;
  like_mini.kda_heads = 4;
  like_mini.kda_head_dim = 64;
  like_mini.mla_heads = 4;
  like_mini.q_lora = 96;
  like_mini.rank = 64;
  like_mini.experts = 16;
  like_mini.topk = 4;
  like_mini.latent = 128;
  like_mini.block = 4;
  std::vector<SmallShape> shapes = {like_mini};
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(test::effort(12)); ++seed) shapes.push_back(random_shape(seed));
  for_each_backend([&](BackendFixture& backend) {
    if (backend.backend() == KernelBackend::kRef) return;  // loops for reading, with scratch of their own
    for (size_t i = 0; i < shapes.size(); ++i) {
      SCOPED_TRACE(cat("shape ", i, " ", shapes[i].json()));
      const RandomModel model(shapes[i], i);
      const DType dtype = i % 2 == 0 ? DType::kF32 : DType::kBF16;
      const ModelCost cost = cost_of(model.config(), model.weights(), dtype);
      for (const Step& step : kSteps) {
        expect_scratch(backend.backend(), i % 3 == 0 ? 5 : 2, model.model(), cost, step);
      }
    }
  });
}

TEST(HeldToModels, ArenaOfNano) {
  const std::string dir = test::data_path("../../models/nano");
  const auto config = load_model_config(dir);
  ASSERT_TRUE(config.is_ok()) << config.status().message();
  const auto checkpoint = Checkpoint::open(dir);
  ASSERT_TRUE(checkpoint.is_ok()) << checkpoint.status().message();
  const auto weights = bind_model_weights(checkpoint.value(), config.value());
  ASSERT_TRUE(weights.is_ok()) << weights.status().message();
  const Model model(config.value(), weights.value(), ModelOptions{});
  const ModelCost cost = cost_of(config.value(), weights.value(), DType::kF32);
  EXPECT_EQ(released_weight_sizes(config.value()).file_bytes, static_cast<int64_t>(checkpoint.value().total_bytes()));
  for_each_backend([&](BackendFixture& backend) {
    if (backend.backend() == KernelBackend::kRef || backend.backend() == KernelBackend::kPortable) return;
    for (const Step& step : {Step{1, 192, 0, 0}, Step{0, 0, 1, 64}, Step{0, 0, 8, 16}, Step{1, 64, 4, 16}}) {
      expect_scratch(backend.backend(), 2, model, cost, step);
    }
  });
}

// The most of any step within limits is not below any of them.
TEST(HeldToModels, TheMostOfStepsWithinLimits) {
  const RandomModel model(random_shape(3), 3);
  const ModelCost cost = cost_of(model.config(), model.weights(), DType::kBF16);
  const StepLimits limits{.rows = 60, .sequences = 6, .logit_rows = 6};
  StepShape rest;
  rest.context = 300;
  rest.threads = 3;
  const int64_t most = most_scratch_bytes(cost, limits, rest);
  int64_t seen = 0;
  for (int64_t decode = 0; decode <= limits.sequences; ++decode) {
    for (int64_t prompts = 0; prompts + decode <= limits.sequences; ++prompts) {
      for (int64_t rows = prompts; rows + decode <= limits.rows && prompts + decode > 0; rows += 11) {
        StepShape shape = rest;
        shape.prompts = prompts;
        shape.prompt_rows = prompts == 0 ? 0 : rows;
        shape.decode_rows = decode;
        shape.logit_rows = prompts + decode;
        const int64_t touched = step_scratch(cost, shape).touched_bytes;
        EXPECT_LE(touched, most) << prompts << " prompts with " << rows << " rows, " << decode << " decoded";
        seen = std::max(seen, touched);
      }
    }
  }
  EXPECT_LE(static_cast<double>(most), 1.3 * static_cast<double>(seen));
}

}  // namespace
}  // namespace tandem
