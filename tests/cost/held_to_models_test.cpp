// Predicted memory against models that run: weights, caches, and the peak of the step arena within 2 %.
#include <gtest/gtest.h>

#include <array>
#include <optional>

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

constexpr int64_t kThreads = 2;  // of a BackendFixture

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

// One step of `sequences` equal sequences after `past` tokens each; what the arena held at most.
struct Step {
  bool is_prefill;
  int64_t sequences;
  int64_t tokens;  // of each
  int64_t past;
};

int64_t lanes_of(KernelBackend backend) {
  return backend >= KernelBackend::kAvx512 ? 16 : (backend == KernelBackend::kAvx2 ? 8 : 4);
}

void run(const ExecContext& ctx, const Model& model, std::vector<SequenceCache>& caches, const Step& step,
         LogitsWanted logits) {
  StepPlan plan;
  std::vector<SequenceCacheView> views;
  for (SequenceCache& cache : caches) {
    ASSERT_TRUE(cache.reserve(cache.length() + step.tokens).is_ok());
    for (int64_t i = 0; i < step.tokens; ++i) plan.tokens.emplace_back(static_cast<int32_t>((7 * i + 3) % 61));
    plan.sequences.push_back({.cache = static_cast<int64_t>(views.size()),
                              .num_tokens = step.tokens,
                              .num_computed_tokens = cache.length(),
                              .mode = step.is_prefill ? StepMode::kPrefill : StepMode::kDecode,
                              .logits = logits,
                              .captures = {}});
    views.push_back(cache.view());
  }
  const auto result = model.forward(ctx, plan, views);
  ASSERT_TRUE(result.is_ok()) << result.status().message();
}

// `share`: of everything the model takes that the prediction may be off by; none: only the size is right, for models so
// small that scratch is most of their memory.
void expect_scratch(KernelBackend backend, const Model& model, const ModelCost& cost, const Step& step,
                    std::optional<double> share) {
  SCOPED_TRACE(cat(step.is_prefill ? "prefill" : "decode", " of ", step.sequences, " × ", step.tokens, " after ",
                   step.past, step.sequences == 1 ? "" : " each"));
  std::vector<SequenceCache> caches;
  for (int64_t s = 0; s < step.sequences; ++s) caches.emplace_back(cost.cache);
  if (step.past > 0) {
    BackendFixture before(backend, kThreads);
    run(before.ctx(), model, caches, {true, step.sequences, step.past, 0}, LogitsWanted::kNone);
  }
  BackendFixture fresh(backend, kThreads);  // its arena has seen nothing
  run(fresh.ctx(), model, caches, step, LogitsWanted::kLast);
  const StepScratch predicted = step_scratch(cost, {.is_prefill = step.is_prefill,
                                                    .sequences = step.sequences,
                                                    .rows = step.sequences * step.tokens,
                                                    .logit_rows = step.sequences,
                                                    .context = step.past + step.tokens,
                                                    .threads = kThreads,
                                                    .lanes = lanes_of(backend)});
  // A share of what the model takes in all: kernels differ in their scratch from one instruction set to the next.
  const auto measured = static_cast<double>(fresh.ctx().arena.peak_bytes());
  const WeightSizes& weights = cost.weights;
  const int64_t caches_bytes = step.sequences * cost.cache.state_bytes() +
                               step.sequences * (step.past + step.tokens) * cost.cache.latent_bytes_per_token();
  const auto others =
      static_cast<double>(weights.trunk.bytes + weights.head.bytes + weights.routed_bytes() + caches_bytes);
  const auto peak = static_cast<double>(predicted.peak_bytes);
  EXPECT_NEAR(peak, measured, share ? *share * (others + measured) : 3 * measured)
      << "beside " << others << " bytes of weights and caches";
  EXPECT_GT(peak, measured / 4);
  EXPECT_EQ(predicted.peak_bytes, predicted.residual_bytes + predicted.layer_bytes);
  EXPECT_GE(predicted.reserved_bytes, predicted.peak_bytes);
}

constexpr std::array<Step, 5> kSteps = {
    {{true, 1, 96, 0}, {true, 1, 33, 80}, {true, 2, 40, 16}, {false, 1, 1, 100}, {false, 9, 1, 20}}};

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
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(test::effort(4)); ++seed) shapes.push_back(random_shape(seed));
  for_each_backend([&](BackendFixture& backend) {
    if (backend.backend() == KernelBackend::kRef) return;  // loops for reading, with scratch of their own
    for (size_t i = 0; i < shapes.size(); ++i) {
      SCOPED_TRACE(cat("shape ", i, " ", shapes[i].json()));
      const RandomModel model(shapes[i], i);
      const DType dtype = i % 2 == 0 ? DType::kF32 : DType::kBF16;
      const ModelCost cost = cost_of(model.config(), model.weights(), dtype);
      const std::optional<double> share = i == 0 ? std::optional(0.15) : std::nullopt;
      for (const Step& step : kSteps) expect_scratch(backend.backend(), model.model(), cost, step, share);
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
  const auto table = make_kernel_table(detect_cpu_features(), std::nullopt);
  ASSERT_TRUE(table.is_ok());
  for (const Step& step : {Step{true, 1, 192, 0}, Step{false, 1, 1, 64}, Step{false, 8, 1, 16}}) {
    expect_scratch(table.value().backend, model, cost, step, 0.15);
  }
}

}  // namespace
}  // namespace tandem
