// The variants of the family that users train for themselves, by name: each one is initialised, loaded and run, and
// obeys the laws: prefill ≡ decode ≡ chunks off the KDA grid ≡ the reference backend, with finite logits.
// Tolerance: two f32 evaluations of one function, as in laws_test.cpp: 4e-5 of the largest logit. Such
// evaluations may choose different experts where two biased scores tie within rounding; the seed has no such token.
#include <gtest/gtest.h>

#include <cmath>

#include "model/random_model.h"

namespace tandem {
namespace {

using test::all_close;
using test::BackendFixture;
using test::for_each_backend;
using test::max_abs;
using test::random_tokens;
using test::RandomModel;
using test::run_chunks;
using test::SmallShape;

struct Variant {
  const char* name;
  void (*change)(SmallShape&);  // what differs from a small K3
};

void every_layer_mla(SmallShape& s) {
  s.mla_layers.clear();
  for (int64_t l = 0; l < s.layers; ++l) s.mla_layers.push_back(l);
}

const Variant kVariants[] = {
    {"as_released", [](SmallShape&) {}},
    {"kimi_linear_family", [](SmallShape& s) { s.k3 = false, s.block = 0, s.latent = 0, s.mxfp4 = false; }},
    {"dense_only", [](SmallShape& s) { s.experts = 0; }},
    {"one_layer", [](SmallShape& s) { s.layers = 1, s.mla_layers = {}; }},
    {"no_attn_res", [](SmallShape& s) { s.block = 0; }},
    {"full_attn_res", [](SmallShape& s) { s.full_attn_res = true, s.block = 0; }},
    {"block_1", [](SmallShape& s) { s.block = 1; }},
    {"block_2", [](SmallShape& s) { s.block = 2; }},
    {"block_5", [](SmallShape& s) { s.block = 5; }},
    {"block_beyond_depth", [](SmallShape& s) { s.block = 40; }},
    {"kda_only", [](SmallShape& s) { s.mla_layers = {}; }},
    {"mla_only_empty_kda_list", every_layer_mla},
    {"mla_only_null_linear_attn_config", [](SmallShape& s) { every_layer_mla(s), s.linear_attn = false; }},
    {"softplus_gate", [](SmallShape& s) { s.lower_bound = false; }},
    {"low_rank_gate", [](SmallShape& s) { s.full_rank_gate = false; }},
    {"no_q_lora", [](SmallShape& s) { s.q_lora = 0; }},
    {"no_output_gate", [](SmallShape& s) { s.output_gate = false; }},
    {"silu", [](SmallShape& s) { s.situ = false; }},
    {"full_width_experts", [](SmallShape& s) { s.latent = 0; }},
    {"latent_without_norm", [](SmallShape& s) { s.latent_norm = false; }},
    {"no_shared_experts", [](SmallShape& s) { s.shared = 0; }},
    {"moe_layer_freq_2", [](SmallShape& s) { s.moe_layer_freq = 2; }},
    {"expert_groups", [](SmallShape& s) { s.experts = 12, s.groups = 4, s.topk_group = 2; }},
    {"one_expert_per_token", [](SmallShape& s) { s.topk = 1; }},
    {"tied_embeddings", [](SmallShape& s) { s.tied = true; }},
    {"tied_embeddings_kimi_linear", [](SmallShape& s) { s.tied = true, s.k3 = false; }},
    {"conv_width_1", [](SmallShape& s) { s.conv_width = 1; }},
    {"conv_width_2", [](SmallShape& s) { s.conv_width = 2; }},
    {"head_dim_8", [](SmallShape& s) { s.kda_head_dim = 8; }},
    {"head_dim_33", [](SmallShape& s) { s.kda_head_dim = 33; }},
    {"head_dim_128", [](SmallShape& s) { s.kda_head_dim = 128; }},
    {"three_kda_heads_one_mla_head", [](SmallShape& s) { s.kda_heads = 3, s.mla_heads = 1; }},
    {"one_kda_head_three_mla_heads", [](SmallShape& s) { s.kda_heads = 1, s.mla_heads = 3; }},
    {"unquantised_experts", [](SmallShape& s) { s.mxfp4 = false; }},
    {"f16_weights", [](SmallShape& s) { s.stored = DType::kF16; }},
    {"f32_weights", [](SmallShape& s) { s.stored = DType::kF32; }},
    {"f16_weights_unquantised_experts", [](SmallShape& s) { s.stored = DType::kF16, s.mxfp4 = false; }},
    {"f32_weights_unquantised_experts", [](SmallShape& s) { s.stored = DType::kF32, s.mxfp4 = false; }},
    {"vision_config_present", [](SmallShape& s) { s.vision = true; }},
    {"mtp_layers_declared", [](SmallShape& s) { s.mtp_layers = 2; }},
    {"mtp_layers_declared_kimi_linear", [](SmallShape& s) { s.mtp_layers = 1, s.k3 = false, s.block = 0; }},
};

class Variants : public ::testing::TestWithParam<Variant> {};

TEST_P(Variants, RunsAndObeysTheLaws) {
  SmallShape shape;
  shape.hidden = 32;
  shape.vocab = 64;
  GetParam().change(shape);
  const RandomModel model(shape, 23);
  const auto tokens = random_tokens(26, model.config().vocab_size, 24);
  std::vector<float> reference;  // of the reference backend, the first
  for_each_backend([&](BackendFixture& backend) {
    const auto run = [&](int64_t chunk, StepMode mode) {
      SequenceCache cache = model.new_cache();
      return run_chunks(backend.ctx(), model, cache, tokens, chunk, mode);
    };
    const auto prefill = run(26, StepMode::kPrefill);
    for (const float logit : prefill) ASSERT_TRUE(std::isfinite(logit));
    EXPECT_GT(max_abs(prefill), 0.5f) << "random models have logits of standard deviation 2";
    if (reference.empty()) {
      ASSERT_EQ(backend.backend(), KernelBackend::kRef);
      reference = prefill;
    }
    const float tolerance = 4e-5f * std::max(1.f, max_abs(reference));
    EXPECT_TRUE(all_close(prefill, reference, tolerance)) << "against the reference backend";
    EXPECT_TRUE(all_close(run(1, StepMode::kDecode), reference, tolerance)) << "decode";
    EXPECT_TRUE(all_close(run(9, StepMode::kPrefill), reference, tolerance)) << "chunks of 9";
  });
}

INSTANTIATE_TEST_SUITE_P(Named, Variants, ::testing::ValuesIn(kVariants),
                         [](const auto& test) { return std::string(test.param.name); });

// The stored type changes no value here: BF16 numbers are exact in F32, and the arithmetic is that of f32.
TEST(VariantsStored, F32WeightsGiveTheLogitsOfBf16Weights) {
  for_each_backend([](BackendFixture& backend) {
    SmallShape shape;
    const RandomModel released(shape, 19);
    shape.stored = DType::kF32;
    const RandomModel widened(shape, 19);
    const auto tokens = random_tokens(20, shape.vocab, 20);
    SequenceCache a = released.new_cache(), b = widened.new_cache();
    const auto expected = run_chunks(backend.ctx(), released, a, tokens, 20, StepMode::kPrefill);
    const auto actual = run_chunks(backend.ctx(), widened, b, tokens, 20, StepMode::kPrefill);
    EXPECT_TRUE(all_close(actual, expected, 4e-5f * max_abs(expected)));
  });
}

// The text model does not read the vision tower: with and without it the logits are the same bits.
TEST(VariantsStored, VisionTowerChangesNoTextLogit) {
  BackendFixture backend(available_backends(detect_cpu_features()).back());
  SmallShape shape;
  const RandomModel text(shape, 21);
  shape.vision = true;
  const RandomModel both(shape, 21);
  EXPECT_FALSE(text.config().vision.has_value());
  EXPECT_TRUE(both.config().vision.has_value());
  const auto tokens = random_tokens(20, shape.vocab, 22);
  SequenceCache a = text.new_cache(), b = both.new_cache();
  EXPECT_TRUE(test::all_equal_bits(run_chunks(backend.ctx(), both, b, tokens, 20, StepMode::kPrefill),
                                   run_chunks(backend.ctx(), text, a, tokens, 20, StepMode::kPrefill)));
}

}  // namespace
}  // namespace tandem
