// The resident copy: every matrix of a golden checkpoint keeps its values, moves into the arena, and leaves the file.
#include "weights/resident_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "support/golden.h"
#include "tensor/mxfp4.h"
#include "weights/checkpoint.h"
#include "weights/fake_checkpoint.h"
#include "weights/model_weights.h"
#include "weights/widened.h"

namespace tandem {
namespace {

constexpr ResidentOptions kEverything{.experts = true, .trunk = TrunkFormat::kStored};
constexpr ResidentOptions kTrunkAlone{.experts = false, .trunk = TrunkFormat::kStored};
constexpr ResidentOptions kInt8Trunk{.experts = true, .trunk = TrunkFormat::kInt8};

struct Model {
  Checkpoint checkpoint;
  ModelWeights weights;
};

Model open_model(const std::string& dir, const ModelConfig& config) {
  auto checkpoint = Checkpoint::open(dir);
  TANDEM_CHECK(checkpoint.is_ok(), checkpoint.status().message());
  Checkpoint opened = std::move(checkpoint).value();
  auto weights = bind_model_weights(opened, config);
  TANDEM_CHECK(weights.is_ok(), weights.status().message());
  return {std::move(opened), std::move(weights).value()};
}

// Every matrix of the model, by address of its view; written out here so that a forgotten one shows.
std::vector<const WeightView*> trunk_of(const ModelWeights& weights) {
  std::vector<const WeightView*> all = {&weights.lm_head};
  const auto add_mlp = [&](const MlpWeights& mlp) {
    for (const WeightView* view : {&mlp.gate_proj, &mlp.up_proj, &mlp.down_proj}) all.push_back(view);
  };
  for (const LayerWeights& layer : weights.layers) {
    if (const auto* kda = std::get_if<KdaLayerWeights>(&layer.attention)) {
      for (const WeightView* view : {&kda->q_proj, &kda->k_proj, &kda->v_proj, &kda->f_a_proj, &kda->f_b_proj,
                                     &kda->b_proj, &kda->g_proj, &kda->g_a_proj, &kda->g_b_proj, &kda->o_proj}) {
        all.push_back(view);
      }
    } else {
      const auto& mla = std::get<MlaLayerWeights>(layer.attention);
      for (const WeightView* view :
           {&mla.q_proj, &mla.q_a_proj, &mla.q_b_proj, &mla.kv_a_proj, &mla.kv_b_proj, &mla.g_proj, &mla.o_proj}) {
        all.push_back(view);
      }
    }
    if (const auto* mlp = std::get_if<MlpWeights>(&layer.feed_forward)) add_mlp(*mlp);
    if (const auto* moe = std::get_if<MoeLayerWeights>(&layer.feed_forward)) {
      for (const WeightView* view : {&moe->router, &moe->latent_down, &moe->latent_up}) all.push_back(view);
      if (moe->shared_experts) add_mlp(*moe->shared_experts);
    }
  }
  std::erase_if(all, [](const WeightView* view) { return view->empty(); });
  return all;
}

std::vector<const WeightView*> experts_of(const ModelWeights& weights) {
  std::vector<const WeightView*> all;
  for (const LayerWeights& layer : weights.layers) {
    const auto* moe = std::get_if<MoeLayerWeights>(&layer.feed_forward);
    if (moe == nullptr) continue;
    for (const ExpertWeights& expert : moe->experts) {
      for (const WeightView* view : {&expert.w1, &expert.w2, &expert.w3}) all.push_back(view);
    }
  }
  return all;
}

std::vector<std::vector<float>> values_of(const std::vector<const WeightView*>& views) {
  std::vector<std::vector<float>> values;
  for (const WeightView* view : views) values.push_back(widened(*view));
  return values;
}

std::vector<const void*> places_of(const std::vector<const WeightView*>& views) {
  std::vector<const void*> places;
  for (const WeightView* view : views) places.push_back(view->data);
  return places;
}

ModelConfig tied_config() {
  ModelConfig config;
  config.family = ModelFamily::kKimiK3;
  config.vocab_size = 20;
  config.hidden_size = 16;
  config.num_hidden_layers = 1;
  config.kinds = {LayerKind::kKda};
  config.kda_num_heads = 3;
  config.kda_head_dim = 4;
  config.short_conv_kernel_size = 4;
  config.gate_lower_bound = -5.0;
  config.use_full_rank_gate = true;
  config.intermediate_size = 24;
  config.first_k_dense_replace = 1;
  config.tie_word_embeddings = true;
  return config;
}

TEST(ResidentWeights, EveryMatrixMovesAndKeepsItsValues) {
  for (const int threads : {1, 3}) {
    const std::string dir = test::data_path("golden/k3-tiny");
    Model model = open_model(dir, load_model_config(dir).value());
    ModelWeights& w = model.weights;
    const auto trunk = values_of(trunk_of(w));
    const auto experts = values_of(experts_of(w));
    const std::vector<float> embedding = widened(w.embed_tokens);
    std::vector<const void*> before = places_of(trunk_of(w));
    for (const void* place : places_of(experts_of(w))) before.push_back(place);
    const void* const embedding_place = w.embed_tokens.data;

    ThreadPool pool(threads);
    const uint64_t needed = ResidentWeights::bytes_needed(w, kEverything);
    const auto resident = ResidentWeights::place(model.checkpoint, kEverything, pool, w);
    ASSERT_TRUE(resident.is_ok()) << resident.status().message();
    EXPECT_EQ(resident.value().bytes(), needed);
    EXPECT_EQ(values_of(trunk_of(w)), trunk);
    EXPECT_EQ(values_of(experts_of(w)), experts);
    EXPECT_EQ(widened(w.embed_tokens), embedding);
    EXPECT_EQ(w.embed_tokens.data, embedding_place) << "an embedding that is not tied stays in the file";

    std::vector<const void*> after = places_of(trunk_of(w));
    for (const void* place : places_of(experts_of(w))) after.push_back(place);
    const std::set<const void*> distinct(after.begin(), after.end());
    EXPECT_EQ(distinct.size(), after.size());
    for (size_t i = 0; i < after.size(); ++i) {
      EXPECT_NE(after[i], before[i]) << "matrix " << i << " is still in the file";
      EXPECT_EQ(reinterpret_cast<uintptr_t>(after[i]) % 64, 0u) << "matrix " << i;
    }
  }
}

TEST(ResidentWeights, ExpertsStayInTheFileWhenNotAsked) {
  const std::string dir = test::data_path("golden/k3-tiny");
  Model model = open_model(dir, load_model_config(dir).value());
  const auto experts = places_of(experts_of(model.weights));
  const auto trunk = values_of(trunk_of(model.weights));
  ThreadPool pool(2);
  const auto resident = ResidentWeights::place(model.checkpoint, kTrunkAlone, pool, model.weights);
  ASSERT_TRUE(resident.is_ok()) << resident.status().message();
  EXPECT_EQ(places_of(experts_of(model.weights)), experts);
  EXPECT_EQ(values_of(trunk_of(model.weights)), trunk);
  EXPECT_LE(ResidentWeights::bytes_needed(model.weights, kTrunkAlone),
            ResidentWeights::bytes_needed(model.weights, kEverything));
}

TEST(ResidentWeights, TiedHeadAndEmbeddingShareOneCopy) {
  const ModelConfig config = tied_config();
  Model model = open_model(test::FakeCheckpoint(config).write(), config);
  const std::vector<float> table = widened(model.weights.embed_tokens);
  ThreadPool pool(1);
  const auto resident = ResidentWeights::place(model.checkpoint, kEverything, pool, model.weights);
  ASSERT_TRUE(resident.is_ok()) << resident.status().message();
  EXPECT_EQ(model.weights.embed_tokens.data, model.weights.lm_head.data);
  EXPECT_EQ(widened(model.weights.embed_tokens), table);
}

TEST(ResidentWeights, CopiesMadeForAlignmentAreFreed) {
  const ModelConfig config = tied_config();
  test::FakeCheckpoint fake(config);
  fake.header_padding = 1;  // every bf16 matrix at an odd address
  Model model = open_model(fake.write(), config);
  ASSERT_FALSE(model.weights.realigned.empty());
  const auto values = values_of(trunk_of(model.weights));
  ThreadPool pool(2);
  const auto resident = ResidentWeights::place(model.checkpoint, kEverything, pool, model.weights);
  ASSERT_TRUE(resident.is_ok()) << resident.status().message();
  EXPECT_TRUE(model.weights.realigned.empty());
  EXPECT_EQ(values_of(trunk_of(model.weights)), values);
}

// Half a scale from the stored values, whatever a scale is: at most 1/254 of the largest magnitude in the row, and a
// scale is rounded up to 16 bits.
void expect_quantised(const std::vector<float>& stored, const WeightView& view) {
  ASSERT_EQ(view.format, WeightFormat::kInt8);
  const std::vector<float> found = widened(view);
  for (int64_t r = 0; r < view.rows; ++r) {
    float largest = 0;
    for (int64_t c = 0; c < view.cols; ++c) {
      largest = std::max(largest, std::fabs(stored[static_cast<size_t>(r * view.cols + c)]));
    }
    for (int64_t c = 0; c < view.cols; ++c) {
      const auto i = static_cast<size_t>(r * view.cols + c);
      ASSERT_LE(std::fabs(found[i] - stored[i]), largest / 254.f * (1 + 0x1p-14f)) << "row " << r << " column " << c;
    }
  }
}

TEST(ResidentWeights, AnInt8TrunkIsWithinHalfAScaleAndLeavesTheRestAlone) {
  const std::string dir = test::data_path("golden/k3-tiny");
  Model model = open_model(dir, load_model_config(dir).value());
  ModelWeights& w = model.weights;
  const auto trunk = values_of(trunk_of(w));
  const auto experts = values_of(experts_of(w));
  const std::vector<float> embedding = widened(w.embed_tokens);
  std::set<const WeightView*> exact;
  for (LayerWeights& layer : w.layers) {
    if (auto* mla = std::get_if<MlaLayerWeights>(&layer.attention)) exact.insert(&mla->kv_b_proj);
    if (auto* moe = std::get_if<MoeLayerWeights>(&layer.feed_forward)) exact.insert(&moe->router);
  }
  ThreadPool pool(2);
  const uint64_t stored_bytes = ResidentWeights::bytes_needed(w, kEverything);
  const auto resident = ResidentWeights::place(model.checkpoint, kInt8Trunk, pool, w);
  ASSERT_TRUE(resident.is_ok()) << resident.status().message();
  EXPECT_LE(resident.value().bytes(), stored_bytes);
  const auto views = trunk_of(w);
  for (size_t i = 0; i < views.size(); ++i) {
    SCOPED_TRACE(i);
    if (exact.contains(views[i])) {
      EXPECT_EQ(widened(*views[i]), trunk[i]);
    } else {
      expect_quantised(trunk[i], *views[i]);
    }
  }
  EXPECT_EQ(values_of(experts_of(w)), experts);
  EXPECT_EQ(widened(w.embed_tokens), embedding);
}

TEST(ResidentWeights, AnInt8HeadLeavesATiedEmbeddingExact) {
  const ModelConfig config = tied_config();
  for (const size_t padding : {0, 1}) {
    test::FakeCheckpoint fake(config);
    fake.header_padding = padding;
    Model model = open_model(fake.write(), config);
    const std::vector<float> table = widened(model.weights.embed_tokens);
    ThreadPool pool(1);
    const auto resident = ResidentWeights::place(model.checkpoint, kInt8Trunk, pool, model.weights);
    ASSERT_TRUE(resident.is_ok()) << resident.status().message();
    EXPECT_EQ(widened(model.weights.embed_tokens), table);
    expect_quantised(table, model.weights.lm_head);
  }
}

}  // namespace
}  // namespace tandem
