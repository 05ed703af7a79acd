// Binding: golden checkpoints against an independent reader, and small ones bent one tensor at a time.
#include "weights/model_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "base/cat.h"
#include "support/golden.h"
#include "tensor/mxfp4.h"
#include "weights/checkpoint.h"
#include "weights/checkpoint_check.h"
#include "weights/fake_checkpoint.h"
#include "weights/widened.h"

namespace tandem {
namespace {

using test::fake_tensor;
using test::FakeCheckpoint;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kLayer0 = "language_model.model.layers.0.";
constexpr const char* kLayer1 = "language_model.model.layers.1.";

// Two layers with every mechanism: KDA + dense, MLA + MoE with a latent, Block AttnRes, packed experts.
ModelConfig small_config() {
  ModelConfig config;
  config.family = ModelFamily::kKimiK3;
  config.vocab_size = 20;
  config.hidden_size = 16;
  config.num_hidden_layers = 2;
  config.kinds = {LayerKind::kKda, LayerKind::kMla};
  config.kda_num_heads = 3;
  config.kda_head_dim = 4;
  config.short_conv_kernel_size = 4;
  config.gate_lower_bound = -5.0;
  config.use_full_rank_gate = true;
  config.num_attention_heads = 2;
  config.q_lora_rank = 6;
  config.kv_lora_rank = 8;
  config.qk_nope_head_dim = 4;
  config.qk_rope_head_dim = 2;
  config.v_head_dim = 6;
  config.mla_use_output_gate = true;
  config.intermediate_size = 24;
  config.first_k_dense_replace = 1;
  config.num_experts = 2;
  config.num_experts_per_token = 1;
  config.num_shared_experts = 1;
  config.moe_intermediate_size = 64;
  config.routed_expert_hidden_size = 32;
  config.latent_moe_use_norm = true;
  config.attn_res_mode = AttnResMode::kBlock;
  config.attn_res_block_size = 2;
  config.declares_mxfp4 = true;
  return config;
}

struct Bound {
  Checkpoint checkpoint;
  Result<ModelWeights> weights;
};

Bound bind_dir(const std::string& dir, const ModelConfig& config) {
  auto checkpoint = Checkpoint::open(dir);
  EXPECT_TRUE(checkpoint.is_ok()) << checkpoint.status().message();
  Checkpoint opened = std::move(checkpoint).value();
  auto weights = bind_model_weights(opened, config);
  return {std::move(opened), std::move(weights)};
}
Bound bind(const FakeCheckpoint& fake, const ModelConfig& config) { return bind_dir(fake.write(), config); }

// The refusal after `bend` has changed a sound checkpoint.
std::string refusal(const ModelConfig& config, const std::function<void(FakeCheckpoint&)>& bend) {
  FakeCheckpoint fake(config);
  bend(fake);
  const Bound bound = bind(fake, config);
  EXPECT_FALSE(bound.weights.is_ok());
  return bound.weights.status().message();
}

// -------------------------------------------------------------------------------------------------------------- golden

TEST(ModelWeightsGolden, K3TinyHoldsTheValuesOfItsFiles) {
  const std::string dir = test::data_path("golden/k3-tiny");
  const ModelConfig config = load_model_config(dir).value();
  const Bound bound = bind_dir(dir, config);
  ASSERT_TRUE(bound.weights.is_ok()) << bound.weights.status().message();
  const ModelWeights& w = bound.weights.value();
  std::map<std::string, test::GoldenTensor> gold;
  for (const char* shard : {"1", "2"}) {
    const auto file = test::Golden::load(cat("golden/k3-tiny/model-0000", shard, "-of-00002.safetensors"));
    gold.insert(file.tensors().begin(), file.tensors().end());
  }
  const auto text = [&](const std::string& name) -> const test::GoldenTensor& {
    return gold.at("language_model.model." + name);
  };
  EXPECT_EQ(widened(w.embed_tokens), text("embed_tokens.weight").f32);
  EXPECT_EQ(widened(w.lm_head), gold.at("language_model.lm_head.weight").f32);
  EXPECT_EQ(w.norm, text("norm.weight").f32);
  EXPECT_TRUE(w.realigned.empty());

  const auto& kda = std::get<KdaLayerWeights>(w.layers[0].attention);
  EXPECT_EQ(widened(kda.v_proj), text("layers.0.self_attn.v_proj.weight").f32);
  EXPECT_EQ(widened(kda.o_proj), text("layers.0.self_attn.o_proj.weight").f32);
  EXPECT_EQ(kda.dt_bias, text("layers.0.self_attn.dt_bias").f32);
  std::vector<float> taps;
  for (const char* stream : {"q", "k", "v"}) {
    const auto& one = text(cat("layers.0.self_attn.", stream, "_conv1d.weight")).f32;
    taps.insert(taps.end(), one.begin(), one.end());
  }
  EXPECT_EQ(kda.conv_weight, taps);
  const auto& a_log = text("layers.0.self_attn.A_log").f32;
  ASSERT_EQ(a_log.size(), 128u);
  EXPECT_EQ(kda.a_log, std::vector<float>(a_log.begin(), a_log.begin() + config.kda_num_heads))
      << "one a head, padding cut";
  EXPECT_TRUE(kda.g_a_proj.empty());

  const auto& mla = std::get<MlaLayerWeights>(w.layers[3].attention);
  EXPECT_EQ(widened(mla.kv_b_proj), text("layers.3.self_attn.kv_b_proj.weight").f32);
  EXPECT_EQ(mla.q_a_layernorm, text("layers.3.self_attn.q_a_layernorm.weight").f32);
  EXPECT_TRUE(mla.q_proj.empty());

  const auto& norm = text("layers.5.mlp_res_norm.weight").f32;
  const auto& proj = text("layers.5.mlp_res_proj.weight").f32;
  for (size_t i = 0; i < norm.size(); ++i) ASSERT_EQ(w.layers[5].mlp_res[i], norm[i] * proj[i]) << i;

  const auto& moe = std::get<MoeLayerWeights>(w.layers[8].feed_forward);
  ASSERT_EQ(moe.experts.size(), 16u);
  const WeightView& w2 = moe.experts[11].w2;
  const auto& packed = text("layers.8.block_sparse_moe.experts.11.w2.weight_packed").u8;
  const auto& scale = text("layers.8.block_sparse_moe.experts.11.w2.weight_scale").u8;
  EXPECT_EQ(w2.format, WeightFormat::kMxfp4);
  EXPECT_EQ(w2.rows, 64);
  EXPECT_EQ(w2.cols, 32);
  EXPECT_TRUE(std::equal(packed.begin(), packed.end(), static_cast<const uint8_t*>(w2.data)));
  EXPECT_TRUE(std::equal(scale.begin(), scale.end(), w2.scale));
  EXPECT_EQ(moe.e_score_correction_bias, text("layers.8.block_sparse_moe.gate.e_score_correction_bias").f32);
}

TEST(ModelWeightsGolden, KimiLinearTinyBinds) {
  const std::string dir = test::data_path("golden/kimi-linear-tiny");
  const ModelConfig config = load_model_config(dir).value();
  const Bound bound = bind_dir(dir, config);
  ASSERT_TRUE(bound.weights.is_ok()) << bound.weights.status().message();
  const ModelWeights& w = bound.weights.value();
  const auto& kda = std::get<KdaLayerWeights>(w.layers[3].attention);
  EXPECT_EQ(kda.a_log.size(), 2u);
  EXPECT_TRUE(kda.g_proj.empty());
  EXPECT_EQ(kda.g_b_proj.rows, 256);
  EXPECT_EQ(std::get<MlaLayerWeights>(w.layers[2].attention).q_proj.rows, 96);
  EXPECT_EQ(std::get<MoeLayerWeights>(w.layers[1].feed_forward).experts[11].w1.format, WeightFormat::kBF16);
  EXPECT_TRUE(w.output_attn_res.empty());
}

// ------------------------------------------------------------------------------------------------ user-trained
// variants

TEST(ModelWeightsVariants, EveryMechanismCanBeLeftOut) {
  const std::vector<std::pair<std::string, std::function<void(ModelConfig&)>>> variants = {
      {"as it is", [](ModelConfig&) {}},
      {"vision",
       [](ModelConfig& c) {
         c.vision = VisionConfig{.vt_hidden_size = 8,
                                 .vt_intermediate_size = 8,
                                 .vt_num_hidden_layers = 2,
                                 .qkv_hidden_size = 48,
                                 .mm_hidden_size = 8};
       }},
      {"dense only", [](ModelConfig& c) { c.num_experts = 0; }},
      {"no AttnRes", [](ModelConfig& c) { c.attn_res_mode = AttnResMode::kNone; }},
      {"Full AttnRes", [](ModelConfig& c) { c.attn_res_mode = AttnResMode::kFull; }},
      {"other block", [](ModelConfig& c) { c.attn_res_block_size = 1; }},
      {"KDA only", [](ModelConfig& c) { c.kinds.assign(2, LayerKind::kKda); }},
      {"MLA only", [](ModelConfig& c) { c.kinds.assign(2, LayerKind::kMla); }},
      {"low-rank gate", [](ModelConfig& c) { c.use_full_rank_gate = false; }},
      {"softplus gate", [](ModelConfig& c) { c.gate_lower_bound.reset(); }},
      {"direct queries, no gate",
       [](ModelConfig& c) {
         c.q_lora_rank.reset();
         c.mla_use_output_gate = false;
       }},
      {"no latent", [](ModelConfig& c) { c.routed_expert_hidden_size.reset(); }},
      {"latent without norm", [](ModelConfig& c) { c.latent_moe_use_norm = false; }},
      {"no shared experts", [](ModelConfig& c) { c.num_shared_experts = 0; }},
      {"plain experts", [](ModelConfig& c) { c.declares_mxfp4 = false; }},
      {"tied", [](ModelConfig& c) { c.tie_word_embeddings = true; }},
      {"Kimi-Linear", [](ModelConfig& c) { c.family = ModelFamily::kKimiLinear; }},
      {"many heads", [](ModelConfig& c) { c.kda_num_heads = 130; }},
  };
  for (const auto& [name, change] : variants) {
    SCOPED_TRACE(name);
    ModelConfig config = small_config();
    change(config);
    const Bound bound = bind(FakeCheckpoint(config), config);
    ASSERT_TRUE(bound.weights.is_ok()) << bound.weights.status().message();
    const ModelWeights& w = bound.weights.value();
    EXPECT_EQ(w.lm_head.data == w.embed_tokens.data, config.tie_word_embeddings);
    EXPECT_EQ(w.output_attn_res.size(), config.attn_res_mode == AttnResMode::kNone ? 0u : 16u);
    for (size_t l = 0; l < 2; ++l) {
      EXPECT_EQ(std::holds_alternative<KdaLayerWeights>(w.layers[l].attention), config.kinds[l] == LayerKind::kKda);
      EXPECT_EQ(std::holds_alternative<MoeLayerWeights>(w.layers[l].feed_forward),
                config.is_moe(static_cast<int64_t>(l)));
      EXPECT_EQ(w.layers[l].input_layernorm.size(), 16u);
    }
    if (const auto* kda = std::get_if<KdaLayerWeights>(&w.layers[0].attention)) {
      EXPECT_EQ(kda->a_log.size(), static_cast<size_t>(config.kda_num_heads));
      EXPECT_EQ(kda->conv_weight.size(), static_cast<size_t>(3 * config.kda_projection_size() * 4));
      EXPECT_EQ(kda->g_proj.empty(), !config.use_full_rank_gate);
    }
    if (const auto* moe = std::get_if<MoeLayerWeights>(&w.layers[1].feed_forward)) {
      EXPECT_EQ(moe->latent_norm.empty(), !config.latent_moe_use_norm || !config.has_latent_experts());
      EXPECT_EQ(moe->shared_experts.has_value(), config.num_shared_experts > 0);
      EXPECT_EQ(moe->experts[1].w2.format, config.declares_mxfp4 ? WeightFormat::kMxfp4 : WeightFormat::kBF16);
    }
  }
}

// -------------------------------------------------------------------------------------------------- storage, by tensor

TEST(ModelWeightsStorage, EachTensorMayBeBf16F16OrF32) {
  const ModelConfig config = small_config();
  const std::string matrix = cat(kLayer1, "self_attn.o_proj.weight");
  const std::string vector = cat(kLayer0, "input_layernorm.weight");
  const auto values = test::pattern(16 * 12, 3);
  const auto small = test::pattern(16, 5);
  const std::pair<DType, WeightFormat> types[] = {
      {DType::kBF16, WeightFormat::kBF16}, {DType::kF16, WeightFormat::kF16}, {DType::kF32, WeightFormat::kF32}};
  for (const auto& [dtype, format] : types) {
    FakeCheckpoint fake(config);
    fake.tensors[matrix] = fake_tensor(dtype, {16, 12}, values);
    fake.tensors[vector] = fake_tensor(dtype, {16}, small);
    const Bound bound = bind(fake, config);
    ASSERT_TRUE(bound.weights.is_ok()) << bound.weights.status().message();
    const auto& mla = std::get<MlaLayerWeights>(bound.weights.value().layers[1].attention);
    EXPECT_EQ(mla.o_proj.format, format);
    EXPECT_EQ(widened(mla.o_proj), values);
    EXPECT_EQ(bound.weights.value().layers[0].input_layernorm, small);
  }
}

TEST(ModelWeightsStorage, WhatIsOnDiskDecidesWhetherAnExpertIsPacked) {
  ModelConfig config = small_config();
  const std::string name = cat(kLayer1, "block_sparse_moe.experts.1.w1.weight");
  FakeCheckpoint fake(config);
  fake.tensors.erase(name + "_packed");
  fake.tensors.erase(name + "_scale");
  fake.tensors[name] = fake_tensor(DType::kF16, {64, 32}, test::pattern(64 * 32, 1));
  config.declares_mxfp4 = false;  // the declaration plays no part either way
  const Bound bound = bind(fake, config);
  ASSERT_TRUE(bound.weights.is_ok()) << bound.weights.status().message();
  const auto& moe = std::get<MoeLayerWeights>(bound.weights.value().layers[1].feed_forward);
  EXPECT_EQ(moe.experts[1].w1.format, WeightFormat::kF16);
  EXPECT_EQ(moe.experts[1].w3.format, WeightFormat::kMxfp4);
}

TEST(ModelWeightsStorage, MatricesAtOddAddressesAreCopied) {
  const ModelConfig config = small_config();
  const FakeCheckpoint straight(config);
  FakeCheckpoint odd(config);
  odd.header_padding = 1;
  const Bound a = bind(straight, config);
  ASSERT_TRUE(a.weights.is_ok());
  const std::vector<float> expected = widened(a.weights.value().embed_tokens);
  const Bound b = bind(odd, config);
  ASSERT_TRUE(b.weights.is_ok()) << b.weights.status().message();
  EXPECT_FALSE(b.weights.value().realigned.empty());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.weights.value().embed_tokens.data) % 2, 0u);
  EXPECT_EQ(widened(b.weights.value().embed_tokens), expected);
}

// Bound for a stream and kept after all.
Status keep_streamed(const FakeCheckpoint& fake, const ModelConfig& config, std::vector<float>& w1) {
  const auto checkpoint = Checkpoint::open(fake.write());
  TANDEM_RETURN_IF_ERROR(checkpoint.status());
  CheckpointReport report;
  Result<ModelWeights> weights =
      bind_model_weights(checkpoint.value(), config, {.streamed_experts = true, .report = &report});
  TANDEM_RETURN_IF_ERROR(weights.status());
  EXPECT_GT(report.text.bytes, 0u);
  TANDEM_RETURN_IF_ERROR(keep_experts(checkpoint.value(), config, report, weights.value()));
  const WeightView& view = std::get<MoeLayerWeights>(weights.value().layers[1].feed_forward).experts[1].w1;
  EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % 2, 0u);
  w1 = widened(view);
  return Status::ok();
}

TEST(ModelWeightsStorage, ExpertsThatWereToBeStreamedCanBeKept) {
  const ModelConfig config = small_config();
  const std::string name = cat(kLayer1, "block_sparse_moe.experts.1.w1.weight");
  FakeCheckpoint fake(config);
  fake.header_padding = 1;
  fake.tensors.erase(name + "_packed");
  fake.tensors.erase(name + "_scale");
  const std::vector<float> values = test::pattern(64 * 32, 1);
  fake.tensors[name] = fake_tensor(DType::kF16, {64, 32}, values);
  std::vector<float> w1;
  const Status kept = keep_streamed(fake, config, w1);
  ASSERT_TRUE(kept.is_ok()) << kept.message();
  EXPECT_EQ(w1, values);
  // What a stream would find as it reads is found here.
  const std::string scale = cat(kLayer1, "block_sparse_moe.experts.0.w3.weight_scale");
  fake.tensors[scale].bytes[5] = '\xff';
  EXPECT_THAT(keep_streamed(fake, config, w1).message(),
              HasSubstr(cat(scale, " (model.safetensors) holds the scale 255, a NaN, at element 5")));
}

TEST(ModelWeightsStorage, ShortLayerPrefixIsAnAlias) {
  const ModelConfig config = small_config();
  FakeCheckpoint fake(config);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : fake.tensors) names.push_back(name);
  const std::string prefix = "language_model.model.layers.";
  for (const std::string& name : names) {
    if (name.starts_with(prefix)) fake.rename(name, "language_model.layers." + name.substr(prefix.size()));
  }
  const Bound bound = bind(fake, config);
  EXPECT_TRUE(bound.weights.is_ok()) << bound.weights.status().message();
}

// ------------------------------------------------------------------------------------------------------ decay
// logarithm

TEST(ModelWeightsALog, PaddedExactAndFourDimensionalTensorsGiveTheSameHeads) {
  const ModelConfig config = small_config();
  const std::string name = cat(kLayer0, "self_attn.A_log");
  const std::vector<float> heads = {0.5f, -0.25f, 1.5f};
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{128}, std::vector<int64_t>{3},
                                            std::vector<int64_t>{1, 1, 3, 1}, std::vector<int64_t>{4}}) {
    std::vector<float> values = heads;
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    values.resize(static_cast<size_t>(count), 0.0f);
    FakeCheckpoint fake(config);
    fake.tensors[name] = fake_tensor(DType::kF32, shape, values);
    const Bound bound = bind(fake, config);
    ASSERT_TRUE(bound.weights.is_ok()) << bound.weights.status().message();
    EXPECT_EQ(std::get<KdaLayerWeights>(bound.weights.value().layers[0].attention).a_log, heads);
  }
}

TEST(ModelWeightsALog, NonZeroTailIsRefusedByItsFirstElement) {
  const std::string message = refusal(small_config(), [](FakeCheckpoint& fake) {
    std::vector<float> values(128, 0.0f);
    values[70] = 0.125f;
    values[71] = 1.0f;
    fake.tensors[cat(kLayer0, "self_attn.A_log")] = fake_tensor(DType::kF32, {128}, values);
  });
  EXPECT_THAT(message, HasSubstr("self_attn.A_log (model.safetensors)"));
  EXPECT_THAT(message, HasSubstr("num_heads = 3"));
  EXPECT_THAT(message, HasSubstr("found 0.125 at element 70"));
}

TEST(ModelWeightsALog, FewerElementsThanHeadsAreRefused) {
  const std::string message = refusal(small_config(), [](FakeCheckpoint& fake) {
    fake.tensors[cat(kLayer0, "self_attn.A_log")] = fake_tensor(DType::kF32, {2}, {1, 1});
  });
  EXPECT_THAT(message, HasSubstr("has shape [2], expected at least num_heads = 3"));
}

// ------------------------------------------------------------------------------------------------------------ refusals

TEST(ModelWeightsRefusals, PackingFaults) {
  const ModelConfig config = small_config();
  const std::string name = cat(kLayer1, "block_sparse_moe.experts.0.w2.weight");
  EXPECT_THAT(refusal(config, [&](FakeCheckpoint& f) { f.tensors.erase(name + "_scale"); }),
              HasSubstr(cat(name, "_packed (model.safetensors) has no ", name, "_scale beside it")));
  EXPECT_THAT(refusal(config, [&](FakeCheckpoint& f) { f.tensors.erase(name + "_packed"); }),
              HasSubstr(cat(name, "_scale (model.safetensors) has no ", name, "_packed beside it")));
  EXPECT_THAT(refusal(config,
                      [&](FakeCheckpoint& f) {
                        f.tensors[name] = fake_tensor(DType::kBF16, {32, 64}, test::pattern(32 * 64, 0));
                      }),
              HasSubstr(cat(name, " (model.safetensors) is stored plain and also as ", name, "_packed")));
  EXPECT_THAT(refusal(config,
                      [&](FakeCheckpoint& f) {
                        f.tensors[name + "_scale"] = fake_tensor(DType::kU8, {32, 4}, std::vector<float>(128, 1));
                      }),
              HasSubstr("_scale (model.safetensors) has shape [32, 4], expected [32, 2]"));
  EXPECT_THAT(refusal(config, [&](FakeCheckpoint& f) { f.tensors[name + "_packed"].dtype = DType::kI8; }),
              HasSubstr("_packed (model.safetensors) is I8, expected U8"));
}

TEST(ModelWeightsRefusals, PackedTensorOutsideTheKnownSet) {
  const std::string name = cat(kLayer0, "self_attn.q_proj.weight");
  const std::string message = refusal(small_config(), [&](FakeCheckpoint& f) {
    f.tensors.erase(name);
    f.tensors[name + "_packed"] = fake_tensor(DType::kU8, {12, 8}, std::vector<float>(96, 1));
    f.tensors[name + "_scale"] = fake_tensor(DType::kU8, {12, 1}, std::vector<float>(12, 1));
  });
  EXPECT_THAT(message, HasSubstr("1 missing, 2 unknown"));
  EXPECT_THAT(message, HasSubstr(cat(name, "_packed (model.safetensors), packed and not a routed expert")));
}

TEST(ModelWeightsRefusals, ScaleOf255) {
  const std::string name = cat(kLayer1, "block_sparse_moe.experts.1.w3.weight_scale");
  const std::string message = refusal(small_config(), [&](FakeCheckpoint& f) { f.tensors[name].bytes[37] = '\xff'; });
  EXPECT_THAT(message, HasSubstr(cat(name, " (model.safetensors) holds the scale 255, a NaN, at element 37")));
}

TEST(ModelWeightsRefusals, ShapesAndTypes) {
  const std::string name = cat(kLayer0, "mlp.up_proj.weight");
  EXPECT_THAT(refusal(small_config(),
                      [&](FakeCheckpoint& f) {
                        f.tensors[name] = fake_tensor(DType::kBF16, {16, 24}, test::pattern(16 * 24, 0));
                      }),
              HasSubstr(cat(name, " (model.safetensors) has shape [16, 24], expected [24, 16]")));
  EXPECT_THAT(refusal(small_config(), [&](FakeCheckpoint& f) { f.tensors[name].dtype = DType::kI16; }),
              HasSubstr(cat(name, " (model.safetensors) is I16, expected BF16, F16 or F32")));
}

TEST(ModelWeightsRefusals, VisionAndMtpTensorsAreHeldToTheirShapes) {
  ModelConfig config = small_config();
  config.vision = VisionConfig{.vt_hidden_size = 8,
                               .vt_intermediate_size = 8,
                               .vt_num_hidden_layers = 1,
                               .qkv_hidden_size = 48,
                               .mm_hidden_size = 8};
  config.num_nextn_predict_layers = 1;
  const FakeCheckpoint whole(config);
  EXPECT_TRUE(bind(whole, config).weights.is_ok());
  EXPECT_THAT(refusal(config, [](FakeCheckpoint& f) { f.tensors.erase("vision_tower.encoder.blocks.0.wo.weight"); }),
              HasSubstr("missing (1):\n  vision_tower.encoder.blocks.0.wo.weight"));
  const auto flatten = [](const std::string& name) {
    return [name](FakeCheckpoint& f) { f.tensors[name].shape = {f.tensors[name].num_elements()}; };
  };
  EXPECT_THAT(refusal(config, flatten("mm_projector.proj.0.weight")), HasSubstr("expected [32, 32]"));
  EXPECT_THAT(refusal(config, flatten("language_model.model.layers.2.eh_proj.weight")), HasSubstr("expected [16, 32]"));

  FakeCheckpoint without_mtp(config);
  std::erase_if(without_mtp.tensors,
                [](const auto& item) { return item.first.find(".layers.2.") != std::string::npos; });
  EXPECT_TRUE(bind(without_mtp, config).weights.is_ok()) << "MTP tensors may be left out";
}

TEST(ModelWeightsRefusals, VisionTensorsWithoutAVisionConfigAreUnknown) {
  const std::string message = refusal(small_config(), [](FakeCheckpoint& f) {
    f.tensors["vision_tower.encoder.final_layernorm.weight"] = fake_tensor(DType::kBF16, {4}, {1, 1, 1, 1});
  });
  EXPECT_THAT(message, HasSubstr("unknown (1):\n  vision_tower.encoder.final_layernorm.weight (model.safetensors)"));
}

TEST(ModelWeightsRefusals, OmittedOutputMixIsNoticed) {
  ModelConfig config = small_config();
  const FakeCheckpoint fake(config);
  config.attn_res_mode = AttnResMode::kNone;  // a configuration that forgot the field
  const Bound bound = bind(fake, config);
  ASSERT_FALSE(bound.weights.is_ok());
  EXPECT_THAT(bound.weights.status().message(), HasSubstr("0 missing, 10 unknown"));
  EXPECT_THAT(bound.weights.status().message(), HasSubstr("output_attn_res_norm.weight"));
}

TEST(ModelWeightsRefusals, EveryKindOfTroubleIsInOneMessage) {
  const std::string message = refusal(small_config(), [](FakeCheckpoint& f) {
    f.tensors.erase("language_model.model.norm.weight");
    f.tensors["language_model.model.extra.weight"] = fake_tensor(DType::kF32, {1}, {1});
    f.tensors["language_model.lm_head.weight"].shape = {16, 20};
    f.tensors[cat(kLayer1, "block_sparse_moe.experts.0.w1.weight_scale")].bytes[0] = '\xff';
  });
  EXPECT_THAT(message, HasSubstr("1 missing, 1 unknown, 2 with another shape, type or content"));
  for (const char* name : {"model.norm.weight", "model.extra.weight", "lm_head.weight", "experts.0.w1.weight_scale"}) {
    EXPECT_THAT(message, HasSubstr(name));
  }
}

// --------------------------------------------------------------------------------------------------------- headers
// only

// True names under the prefix of the other family: nothing binds, and every name is reported on both sides.
TEST(CheckpointCheck, WrongPrefixReportsEveryMissingAndEveryUnusedTensor) {
  const ModelConfig config = small_config();
  FakeCheckpoint fake(config);
  std::set<std::string> expected;
  std::set<std::string> renamed;
  for (const auto& [name, tensor] : FakeCheckpoint(config).tensors) {
    expected.insert(name);
    const std::string bare = name.substr(std::string("language_model.").size());
    renamed.insert(bare);
    fake.rename(name, bare);
  }
  auto checkpoint = Checkpoint::open(fake.write(), Checkpoint::Mode::kHeadersOnly);
  ASSERT_TRUE(checkpoint.is_ok()) << checkpoint.status().message();
  const CheckpointReport report = check_checkpoint(checkpoint.value(), config);
  EXPECT_EQ(std::set<std::string>(report.missing.begin(), report.missing.end()), expected);
  EXPECT_EQ(report.missing.size(), expected.size());
  std::set<std::string> unknown;
  for (const auto& tensor : report.unknown) {
    unknown.insert(tensor.name);
    EXPECT_EQ(tensor.shard, "model.safetensors");
  }
  EXPECT_EQ(unknown, renamed);
  EXPECT_EQ(report.text.tensors, 0);
  const std::string message = report.to_status("dir").message();
  EXPECT_THAT(message, HasSubstr(cat(expected.size(), " missing, ", renamed.size(), " unknown")));
  for (const std::string& name : expected) EXPECT_THAT(message, HasSubstr(cat("\n  ", name)));
}

TEST(CheckpointCheck, CountsParametersAndBytesByGroupAndType) {
  const ModelConfig config = small_config();
  const FakeCheckpoint fake(config);
  auto checkpoint = Checkpoint::open(fake.write(), Checkpoint::Mode::kHeadersOnly);
  ASSERT_TRUE(checkpoint.is_ok()) << checkpoint.status().message();
  const CheckpointReport report = check_checkpoint(checkpoint.value(), config);
  EXPECT_TRUE(report.is_clean()) << report.to_status("dir").message();
  int64_t parameters = 0;
  int64_t bytes = 0;
  for_each_expected_tensor(config, [&](const ExpectedTensor& tensor) {
    parameters += tensor.num_elements();
    bytes += tensor.released_bytes();
  });
  EXPECT_EQ(report.text.parameters, parameters);
  EXPECT_EQ(static_cast<int64_t>(report.text.bytes), bytes);
  EXPECT_EQ(report.text.bytes, checkpoint.value().total_bytes());
  EXPECT_EQ(report.text.tensors, checkpoint.value().num_tensors());
  const auto& experts = report.by_group[static_cast<size_t>(TensorGroup::kRoutedExpert)];
  EXPECT_EQ(experts.tensors, 2 * 3 * 2);
  EXPECT_EQ(experts.parameters, 2 * 3 * 64 * 32);
  EXPECT_EQ(experts.bytes, 2u * 3 * (64 * 32 / 2 + 64 * 32 / 32));
  EXPECT_EQ(report.by_dtype[static_cast<size_t>(DType::kU8)].bytes, experts.bytes);
  EXPECT_EQ(report.scale_bytes, 2u * 3 * 64 * 32 / 32);
}

}  // namespace
}  // namespace tandem
