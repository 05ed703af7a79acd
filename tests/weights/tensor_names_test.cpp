// The list of expected tensors against the published counts, and against variants written out by hand.
#include "weights/tensor_names.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/cat.h"
#include "support/golden.h"

namespace tandem {
namespace {

struct Totals {
  int64_t visited = 0;
  int64_t tensors = 0;
  int64_t text_parameters = 0;
  int64_t vision_parameters = 0;
  int64_t mtp_parameters = 0;
  int64_t bytes = 0;
};

Totals totals_of(const ModelConfig& config) {
  Totals totals;
  for_each_expected_tensor(config, [&](const ExpectedTensor& tensor) {
    totals.visited += 1;
    totals.tensors += tensor.released_tensors();
    totals.bytes += tensor.released_bytes();
    const int64_t elements = tensor.num_elements();
    if (tensor.run) {
      totals.text_parameters += elements;
    } else if (tensor.group == TensorGroup::kMtp) {
      totals.mtp_parameters += elements;
    } else {
      totals.vision_parameters += elements;
    }
  });
  return totals;
}

ModelConfig load_config(const std::string& file) {
  auto config = load_model_config_file(test::data_path("../../configs/" + file));
  EXPECT_TRUE(config.is_ok()) << config.status().message();
  return std::move(config).value();
}

// Two layers, KDA then MLA, every optional part off; each test turns on what it looks at.
ModelConfig small_config() {
  ModelConfig config;
  config.family = ModelFamily::kKimiK3;
  config.vocab_size = 300;
  config.hidden_size = 64;
  config.num_hidden_layers = 2;
  config.kinds = {LayerKind::kKda, LayerKind::kMla};
  config.kda_num_heads = 3;
  config.kda_head_dim = 16;
  config.short_conv_kernel_size = 4;
  config.num_attention_heads = 2;
  config.kv_lora_rank = 32;
  config.qk_nope_head_dim = 8;
  config.qk_rope_head_dim = 4;
  config.v_head_dim = 12;
  config.intermediate_size = 96;
  return config;
}

std::map<std::string, std::vector<int64_t>> shapes_of(const ModelConfig& config) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for_each_expected_tensor(config, [&](const ExpectedTensor& tensor) {
    const bool fresh =
        shapes.emplace(std::string(tensor.name), std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end())).second;
    EXPECT_TRUE(fresh) << tensor.name << " is visited twice";
  });
  return shapes;
}

std::set<std::string> names_containing(const ModelConfig& config, const std::string& part) {
  std::set<std::string> names;
  for (const auto& [name, shape] : shapes_of(config)) {
    if (name.find(part) != std::string::npos) names.insert(name);
  }
  return names;
}

using Shape = std::vector<int64_t>;

TEST(TensorNames, K3MatchesThePublishedIndex) {
  const Totals totals = totals_of(load_config("k3.json"));
  EXPECT_EQ(totals.tensors, 497220);
  EXPECT_EQ(totals.text_parameters, 2779484478208);
  EXPECT_EQ(totals.bytes, 1560860324864);
  EXPECT_EQ(totals.mtp_parameters, 0);
}

TEST(TensorNames, K3VisionTowerAndProjectorHaveThePublishedCounts) {
  const ModelConfig config = load_config("k3.json");
  std::map<TensorGroup, int64_t> tensors;
  std::map<TensorGroup, int64_t> parameters;
  for_each_expected_tensor(config, [&](const ExpectedTensor& tensor) {
    tensors[tensor.group] += tensor.released_tensors();
    parameters[tensor.group] += tensor.num_elements();
    EXPECT_EQ(tensor.run, tensor.group != TensorGroup::kVision && tensor.group != TensorGroup::kProjector);
  });
  EXPECT_EQ(tensors[TensorGroup::kVision], 165);
  EXPECT_EQ(tensors[TensorGroup::kProjector], 3);
  EXPECT_NEAR(static_cast<double>(parameters[TensorGroup::kVision]), 401.2e6, 0.05e6);
  EXPECT_NEAR(static_cast<double>(parameters[TensorGroup::kProjector]), 46.1e6, 0.05e6);
  EXPECT_EQ(tensors[TensorGroup::kKda], 69 * 14);
  EXPECT_EQ(tensors[TensorGroup::kMla], 24 * 8);
  EXPECT_EQ(tensors[TensorGroup::kAttnRes], 93 * 4 + 2);
  EXPECT_EQ(tensors[TensorGroup::kRoutedExpert], 92 * 896 * 6);
}

TEST(TensorNames, KimiLinearMatchesThePublishedCounts) {
  const Totals totals = totals_of(load_config("kimi-linear-48b.json"));
  EXPECT_EQ(totals.tensors, 20493);
  EXPECT_EQ(totals.text_parameters, 49122681728);
  EXPECT_EQ(totals.vision_parameters, 0);
}

TEST(TensorNames, HalfAMillionNamesAreWalkedQuickly) {
  const ModelConfig config = load_config("k3.json");
  size_t letters = 0;
  const auto begin = std::chrono::steady_clock::now();
  for_each_expected_tensor(config, [&](const ExpectedTensor& tensor) { letters += tensor.name.size(); });
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(letters, 10'000'000u);
  RecordProperty("walk_ms", std::to_string(elapsed.count()));
  EXPECT_LT(elapsed.count(), 2000.0) << "measured about 10 ms in a release build; this bound allows for sanitizers";
}

// Names, shapes and types of the golden checkpoints, read by the independent reader.
class GoldenNames : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenNames, AreExactlyThoseOfItsConfiguration) {
  const std::string dir = "golden/" + GetParam();
  auto config = load_model_config(test::data_path(dir));
  ASSERT_TRUE(config.is_ok()) << config.status().message();
  std::map<std::string, test::GoldenTensor> stored;
  const int shards = GetParam() == "k3-tiny" ? 2 : 1;
  for (int i = 1; i <= shards; ++i) {
    const auto shard = test::Golden::load(cat(dir, "/model-0000", i, "-of-0000", shards, ".safetensors"));
    stored.insert(shard.tensors().begin(), shard.tensors().end());
  }
  int64_t expected = 0;
  for_each_expected_tensor(config.value(), [&](const ExpectedTensor& tensor) {
    const std::string name(tensor.name);
    expected += tensor.released_tensors();
    if (tensor.released == ReleasedForm::kMxfp4) {
      ASSERT_EQ(stored.count(name + "_packed"), 1u) << name;
      ASSERT_EQ(stored.count(name + "_scale"), 1u) << name;
      EXPECT_EQ(stored[name + "_packed"].shape, (Shape{tensor.shape[0], tensor.shape[1] / 2})) << name;
      EXPECT_EQ(stored[name + "_scale"].shape, (Shape{tensor.shape[0], tensor.shape[1] / 32})) << name;
    } else {
      ASSERT_EQ(stored.count(name), 1u) << name;
      EXPECT_EQ(stored[name].shape, Shape(tensor.shape.begin(), tensor.shape.end())) << name;
    }
  });
  EXPECT_EQ(expected, static_cast<int64_t>(stored.size()));
}

INSTANTIATE_TEST_SUITE_P(All, GoldenNames, ::testing::Values("k3-tiny", "kimi-linear-tiny"));

TEST(TensorNames, DecayLogarithmsArePaddedForK3AndFourDimensionalForKimiLinear) {
  ModelConfig config = small_config();
  const std::string k3 = "language_model.model.layers.0.self_attn.A_log";
  EXPECT_EQ(shapes_of(config)[k3], (Shape{128}));
  config.kda_num_heads = 129;
  EXPECT_EQ(shapes_of(config)[k3], (Shape{256}));
  config.kda_num_heads = 256;
  EXPECT_EQ(shapes_of(config)[k3], (Shape{256}));
  config.family = ModelFamily::kKimiLinear;
  EXPECT_EQ(shapes_of(config)["model.layers.0.self_attn.A_log"], (Shape{1, 1, 256, 1}));
}

TEST(TensorNames, FamilyDecidesThePrefixAndTheTypeOfSmallTensors) {
  ModelConfig config = small_config();
  config.num_experts = 2;
  config.num_experts_per_token = 1;
  config.moe_intermediate_size = 32;
  for (const ModelFamily family : {ModelFamily::kKimiK3, ModelFamily::kKimiLinear}) {
    config.family = family;
    const bool k3 = family == ModelFamily::kKimiK3;
    int64_t small = 0;
    for_each_expected_tensor(config, [&](const ExpectedTensor& tensor) {
      EXPECT_EQ(tensor.name.starts_with("language_model."), k3) << tensor.name;
      const bool always_f32 = tensor.name.ends_with("A_log") || tensor.name.ends_with("dt_bias");
      const bool family_f32 = tensor.name.ends_with("_conv1d.weight") || tensor.name.ends_with("o_norm.weight") ||
                              tensor.name.ends_with("e_score_correction_bias");
      small += family_f32 ? 1 : 0;
      EXPECT_EQ(tensor.released == ReleasedForm::kF32, always_f32 || (family_f32 && k3)) << tensor.name;
    });
    EXPECT_EQ(small, 4 + 2);
  }
}

TEST(TensorNames, PlainResidualsHaveNoAttnResTensors) {
  ModelConfig config = small_config();
  EXPECT_TRUE(names_containing(config, "_res_").empty());
  config.attn_res_mode = AttnResMode::kBlock;
  config.attn_res_block_size = 2;
  const auto block = names_containing(config, "_res_");
  EXPECT_EQ(block.size(), 2u * 4 + 2);
  EXPECT_EQ(block.count("language_model.model.layers.1.self_attention_res_proj.weight"), 1u);
  EXPECT_EQ(block.count("language_model.model.output_attn_res_norm.weight"), 1u);
  config.attn_res_mode = AttnResMode::kFull;
  EXPECT_EQ(names_containing(config, "_res_"), block) << "Full AttnRes uses the same names";
}

TEST(TensorNames, OnlyOneKindOfAttention) {
  ModelConfig config = small_config();
  config.kinds = {LayerKind::kKda, LayerKind::kKda};
  EXPECT_TRUE(names_containing(config, "kv_").empty());
  EXPECT_EQ(names_containing(config, "A_log").size(), 2u);
  config.kinds = {LayerKind::kMla, LayerKind::kMla};
  EXPECT_TRUE(names_containing(config, "A_log").empty());
  EXPECT_TRUE(names_containing(config, "conv1d").empty());
  EXPECT_EQ(names_containing(config, "kv_b_proj").size(), 2u);
}

TEST(TensorNames, LowRankAndFullRankOutputGate) {
  ModelConfig config = small_config();
  auto shapes = shapes_of(config);
  const std::string self_attn = "language_model.model.layers.0.self_attn.";
  EXPECT_EQ(shapes[self_attn + "g_a_proj.weight"], (Shape{16, 64}));
  EXPECT_EQ(shapes[self_attn + "g_b_proj.weight"], (Shape{48, 16}));
  EXPECT_EQ(shapes.count(self_attn + "g_proj.weight"), 0u);
  config.use_full_rank_gate = true;
  shapes = shapes_of(config);
  EXPECT_EQ(shapes[self_attn + "g_proj.weight"], (Shape{48, 64}));
  EXPECT_EQ(shapes.count(self_attn + "g_a_proj.weight"), 0u);
}

TEST(TensorNames, MlaQueriesWithAndWithoutLowRankAndGate) {
  ModelConfig config = small_config();
  const std::string self_attn = "language_model.model.layers.1.self_attn.";
  auto shapes = shapes_of(config);
  EXPECT_EQ(shapes[self_attn + "q_proj.weight"], (Shape{24, 64}));
  EXPECT_EQ(shapes[self_attn + "kv_a_proj_with_mqa.weight"], (Shape{36, 64}));
  EXPECT_EQ(shapes[self_attn + "kv_b_proj.weight"], (Shape{40, 32}));
  EXPECT_EQ(shapes[self_attn + "o_proj.weight"], (Shape{64, 24}));
  EXPECT_EQ(shapes.count(self_attn + "g_proj.weight"), 0u);
  config.q_lora_rank = 20;
  config.mla_use_output_gate = true;
  shapes = shapes_of(config);
  EXPECT_EQ(shapes.count(self_attn + "q_proj.weight"), 0u);
  EXPECT_EQ(shapes[self_attn + "q_a_proj.weight"], (Shape{20, 64}));
  EXPECT_EQ(shapes[self_attn + "q_a_layernorm.weight"], (Shape{20}));
  EXPECT_EQ(shapes[self_attn + "q_b_proj.weight"], (Shape{24, 20}));
  EXPECT_EQ(shapes[self_attn + "g_proj.weight"], (Shape{24, 64}));
}

TEST(TensorNames, DenseOnlyModelHasNoMoeTensors) {
  const ModelConfig config = small_config();
  EXPECT_TRUE(names_containing(config, "block_sparse_moe").empty());
  EXPECT_EQ(names_containing(config, ".mlp.").size(), 2u * 3);
}

TEST(TensorNames, ExpertsWithAndWithoutLatentNormAndSharedExperts) {
  ModelConfig config = small_config();
  config.num_experts = 3;
  config.num_experts_per_token = 2;
  config.first_k_dense_replace = 1;
  config.moe_intermediate_size = 32;
  const std::string moe = "language_model.model.layers.1.block_sparse_moe.";
  auto shapes = shapes_of(config);
  EXPECT_EQ(shapes[moe + "experts.2.w1.weight"], (Shape{32, 64}));
  EXPECT_EQ(shapes[moe + "experts.2.w2.weight"], (Shape{64, 32}));
  EXPECT_TRUE(names_containing(config, "routed_expert_").empty());
  EXPECT_TRUE(names_containing(config, "shared_experts").empty());
  EXPECT_EQ(names_containing(config, "block_sparse_moe").size(), 2u + 3 * 3);
  config.routed_expert_hidden_size = 96;
  config.num_shared_experts = 2;
  shapes = shapes_of(config);
  EXPECT_EQ(shapes[moe + "experts.0.w3.weight"], (Shape{32, 96}));
  EXPECT_EQ(shapes[moe + "routed_expert_down_proj.weight"], (Shape{96, 64}));
  EXPECT_EQ(shapes[moe + "routed_expert_up_proj.weight"], (Shape{64, 96}));
  EXPECT_EQ(shapes[moe + "shared_experts.down_proj.weight"], (Shape{64, 64}));
  EXPECT_EQ(shapes.count(moe + "routed_expert_norm.weight"), 0u);
  config.latent_moe_use_norm = true;
  EXPECT_EQ(shapes_of(config)[moe + "routed_expert_norm.weight"], (Shape{96}));
}

TEST(TensorNames, OnlyRoutedExpertsInWholeGroupsMayBePacked) {
  ModelConfig config = small_config();
  config.num_experts = 1;
  config.num_experts_per_token = 1;
  config.moe_intermediate_size = 48;  // w2's rows are no whole number of groups
  config.declares_mxfp4 = true;
  for_each_expected_tensor(config, [&](const ExpectedTensor& tensor) {
    const bool grouped_expert = tensor.name.ends_with(".w1.weight") || tensor.name.ends_with(".w3.weight");
    EXPECT_EQ(tensor.quantisable, grouped_expert) << tensor.name;
    EXPECT_EQ(tensor.released == ReleasedForm::kMxfp4, grouped_expert) << tensor.name;
  });
}

TEST(TensorNames, TiedEmbeddingsHaveNoHead) {
  ModelConfig config = small_config();
  EXPECT_EQ(names_containing(config, "lm_head").size(), 1u);
  config.tie_word_embeddings = true;
  EXPECT_TRUE(names_containing(config, "lm_head").empty());
}

TEST(TensorNames, MtpLayersAreKnownOptionalAndNotRun) {
  ModelConfig config = small_config();
  config.attn_res_mode = AttnResMode::kBlock;
  config.attn_res_block_size = 1;
  config.num_nextn_predict_layers = 1;
  int64_t mtp = 0;
  for_each_expected_tensor(config, [&](const ExpectedTensor& tensor) {
    const bool in_mtp = tensor.name.starts_with("language_model.model.layers.2.");
    EXPECT_EQ(tensor.group == TensorGroup::kMtp, in_mtp) << tensor.name;
    EXPECT_EQ(tensor.run, !in_mtp) << tensor.name;
    EXPECT_EQ(tensor.optional, in_mtp) << tensor.name;
    if (in_mtp) {
      EXPECT_NE(tensor.role, TensorRole::kNotRun) << tensor.name;
      EXPECT_EQ(tensor.layer, 2) << tensor.name;
      EXPECT_EQ(tensor.name.find("_res_"), std::string_view::npos) << tensor.name;
      mtp += 1;
    }
  });
  EXPECT_EQ(mtp, 4 + 2 + 5 + 3 + 2);  // ends and norms, MLA without q-LoRA and gate, dense MLP, head
  EXPECT_EQ(shapes_of(config)["language_model.model.layers.2.eh_proj.weight"], (Shape{64, 128}));
}

}  // namespace
}  // namespace tandem
