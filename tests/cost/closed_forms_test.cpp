// The cost model against the numbers that systems.md states: inventory, cache sizes, tables, examples and crossings.
#include <cmath>

#include "cost/attention_compare.h"
#include "cost/cost_support.h"

namespace tandem {
namespace {

using test::cost_of_config;
using test::relative;
using test::spec_machine;

TEST(ClosedForms, Inventory) {
  const ModelCost k3 = cost_of_config("k3.json", DType::kBF16);
  EXPECT_LT(relative(static_cast<double>(k3.weights.text().parameters), 2.7795e12), 5e-5);
  EXPECT_LT(relative(static_cast<double>(k3.weights.active_parameters(16)), 104.19e9), 5e-5);
  EXPECT_EQ(k3.weights.file_bytes, 1'560'860'324'864);
  EXPECT_EQ(k3.weights.expert.bytes, 17'547'264);
  EXPECT_EQ(k3.weights.expert.parameters, 33'030'144);
  EXPECT_EQ(k3.weights.num_experts(), 92 * 896);
  EXPECT_LT(relative(static_cast<double>(k3.weights.routed_bytes()), 1446.5e9), 5e-5);
  EXPECT_LT(relative(static_cast<double>(k3.weights.trunk.bytes + k3.weights.head.bytes), 111.14e9), 5e-4);
}

struct CacheCase {
  const char* config;
  int64_t kda_layers, mla_layers;
  int64_t state_bytes;      // bf16, of a sequence
  int64_t bytes_per_token;  // bf16
  double reference_times;   // expanded keys and values over latents
};

// Only the MLA layers grow with the context, only the KDA layers have a state.
TEST(ClosedForms, CacheCountsEachKindOfLayerOnce) {
  const CacheCase cases[] = {
      {"k3.json", 69, 24, 69 * (96 * 128 * 128 * 2 + 3 * 36864 * 2), 24 * 576 * 2, 96 * (192 + 128) / 576.0},
      {"k3-mini.json", 12, 4, 12 * (16 * 64 * 64 * 2 + 3 * 3072 * 2), 4 * 320 * 2, 16 * (128 + 64) / 320.0},
      {"kimi-linear-48b.json", 20, 7, 20 * (32 * 128 * 128 * 2 + 3 * 12288 * 2), 7 * 576 * 2, 32 * (192 + 128) / 576.0},
  };
  for (const CacheCase& expected : cases) {
    SCOPED_TRACE(expected.config);
    ModelCost cost = cost_of_config(expected.config, DType::kBF16);
    EXPECT_EQ(cost.cache.num_kda_layers(), expected.kda_layers);
    EXPECT_EQ(cost.cache.num_mla_layers(), expected.mla_layers);
    EXPECT_EQ(state_bytes_per_sequence(cost), static_cast<double>(expected.state_bytes));
    EXPECT_EQ(cache_bytes_per_token(cost), static_cast<double>(expected.bytes_per_token));
    cost.path = AttentionPath::kReference;
    EXPECT_NEAR(cache_bytes_per_token(cost) / static_cast<double>(expected.bytes_per_token), expected.reference_times,
                1e-9);
  }
  EXPECT_EQ(state_bytes_per_sequence(cost_of_config("k3.json", DType::kBF16)), 232'316'928);
}

struct DecodeRow {
  double batch, distinct, expert_gb, weight_gb, state_gb_bf16;
};

TEST(ClosedForms, DecodeTable) {
  const DecodeRow rows[] = {{1, 16, 25.8, 137.0, 0.46},   {8, 120, 194.2, 305.3, 3.7},  {32, 393, 633.8, 745, 14.9},
                            {64, 613, 989.9, 1101, 29.7}, {128, 807, 1302, 1414, 59.5}, {256, 887, 1432, 1543, 119}};
  const ModelCost k3 = cost_of_config("k3.json", DType::kBF16);
  for (const DecodeRow& row : rows) {
    SCOPED_TRACE(row.batch);
    EXPECT_EQ(std::round(distinct_experts(896, 16, row.batch)), row.distinct);
    const StepCost cost = decode_cost(k3, 0, row.batch);
    EXPECT_LT(relative(cost.expert_bytes, row.expert_gb * 1e9), 2e-3);
    EXPECT_LT(relative(cost.weight_bytes(), row.weight_gb * 1e9), 1e-3);
    EXPECT_LT(relative(cost.state_bytes, row.state_gb_bf16 * 1e9), 1.1e-2);
  }
  // The engine keeps the convolution history in the cache's type too: 30.5 MB more than the specification's f32 states.
  const double wide = decode_cost(cost_of_config("k3.json", DType::kF32), 0, 1).state_bytes;
  EXPECT_LT(relative(wide - 30.5e6, 898.7e6), 1e-4);
}

TEST(ClosedForms, DecodeExample) {
  const ModelCost k3 = cost_of_config("k3.json", DType::kBF16);
  const auto one = decode_time(k3, spec_machine(), 131072, 1);
  ASSERT_TRUE(one.has_value());
  EXPECT_NEAR(one->floor_seconds * 1e3, 1.84, 0.01);
  EXPECT_EQ(one->floor_limit, Limit::kMemory);
  const auto many = decode_time(k3, spec_machine(), 32768, 64);
  ASSERT_TRUE(many.has_value());
  EXPECT_NEAR(many->floor_seconds * 1e3, 15.5, 0.1);
  EXPECT_NEAR(64 / many->floor_seconds, 4.1e3, 60);
  EXPECT_LT(relative(decode_cost(k3, 131072, 1).mla_flops, 0.657e12), 2e-3);
}

TEST(ClosedForms, Prefill) {
  const ModelCost k3 = cost_of_config("k3.json", DType::kBF16);
  // The tables take every row through every layer, and leave the head out.
  const auto every_row = [&](int64_t past, int64_t tokens) {
    return prefill_cost(k3, past, tokens, tokens, PromptLogits::kAll);
  };
  const StepCost cold = every_row(0, 8192);
  EXPECT_LT(relative(cold.flops() - cold.head_flops, 1.74e15), 3e-3);
  EXPECT_LT(relative(cold.mla_flops, 49.5e12), 2e-3);
  EXPECT_LT(relative(cold.trunk_flops + cold.expert_flops, 1.688e15), 1e-3);
  const StepCost million = every_row(0, 1048576);
  EXPECT_LT(relative(million.mla_flops, 811e15), 2e-3);
  EXPECT_LT(relative(million.trunk_flops + million.expert_flops, 216e15), 2e-3);
  const StepCost even = every_row(0, 279000);
  EXPECT_LT(relative(even.mla_flops, even.trunk_flops + even.expert_flops), 3e-3);
  // A prefix of 400 Ki: its keys and values are rebuilt once.
  const StepCost appended = every_row(409600, 4096);
  EXPECT_LT(relative(appended.mla_flops, 2.49e15 + 0.247e15), 2e-3);
  const auto knee = prefill_knee(k3, spec_machine().machine);
  ASSERT_TRUE(knee.has_value());
  EXPECT_LT(relative(*knee, 1560), 0.02);
}

TEST(ClosedForms, StatesAgainstLatents) {
  const ModelCost k3 = cost_of_config("k3.json", DType::kBF16);
  const double equal = 2 * state_bytes_per_sequence(k3) / cache_bytes_per_token(k3);
  EXPECT_LT(relative(equal, 16'800), 1e-3);
  EXPECT_LT(relative(2 * equal, 33'600), 1e-3);  // latents of half the bytes
  EXPECT_NEAR(state_bytes_per_sequence(k3) / 400e9 * 1e3, 0.58, 0.001);
  // One checkpoint takes the memory of 8 403 tokens of latents.
  EXPECT_NEAR(state_bytes_per_sequence(k3) / cache_bytes_per_token(k3), 8402.7, 0.1);
}

TEST(ClosedForms, RestoreBeatsRecomputationByFar) {
  const ModelCost k3 = cost_of_config("k3.json", DType::kBF16);
  SpeedModel speed = spec_machine();
  speed.efficiency.prefill_flops = 0.5;
  const auto hit = prefix_hit(k3, speed, 65536, 8192, 400e9);
  ASSERT_TRUE(hit.has_value());
  EXPECT_EQ(hit->restore_bytes, 232'316'928.0 + 65536 * 27'648.0);
  EXPECT_GT(hit->recompute_seconds / hit->restore_seconds, 300);
  const auto disk = prefix_hit(k3, speed, 65536, 8192, 40e9);
  EXPECT_GT(disk->recompute_seconds / disk->restore_seconds, 30);
  // The fixed part equals 22 recomputed tokens.
  const auto tokens = prefix_break_even(k3, speed, 65536, 8192, 400e9);
  ASSERT_TRUE(tokens.has_value());
  EXPECT_NEAR(static_cast<double>(*tokens), 22, 1);
}

const Crossing& crossing(const Comparison& comparison, std::string_view quantity, Attention other) {
  for (const Crossing& c : comparison.crossings) {
    if (c.quantity == quantity && c.other == other) return c;
  }
  ADD_FAILURE() << "no crossing of " << quantity;
  return comparison.crossings.front();
}

TEST(ClosedForms, CrossingsOfTheComparison) {
  const ModelCost k3 = cost_of_config("k3.json", DType::kBF16);
  const Comparison comparison = compare_attentions(k3, spec_machine(), 1, {});
  const double state = state_bytes_per_sequence(k3);
  const double more_layers = 69 * 1152.0;
  const auto only = [&](std::string_view quantity, Attention other) {
    const Crossing& c = crossing(comparison, quantity, other);
    EXPECT_FALSE(c.hybrid_less_at_start);
    EXPECT_EQ(c.contexts.size(), 1u);
    return c.contexts.empty() ? 0.0 : c.contexts[0];
  };
  EXPECT_LT(relative(only("cache memory", Attention::kFullMla), state / more_layers), 1e-6);
  EXPECT_LT(relative(only("cache traffic", Attention::kFullMla), 2 * state / more_layers), 1e-6);
  const double gqa = 93 * 2 * 8 * 128 * 2.0;
  EXPECT_LT(relative(only("cache memory", Attention::kGqa), state / (gqa - 24 * 1152)), 1e-6);
  EXPECT_LT(relative(only("cache memory", Attention::kDsa), state / (more_layers + 93 * 132)), 1e-6);
  // DSA reads 2048 latents and the indexer's keys: below two states at 2048 tokens, and 12 kB a token after.
  EXPECT_TRUE(crossing(comparison, "cache traffic", Attention::kDsa).contexts.empty());
}

// The hybrid of the comparison is the model itself.
TEST(ClosedForms, TheComparedHybridIsTheModel) {
  for (const char* name : {"k3.json", "k3-mini.json", "kimi-linear-48b.json"}) {
    SCOPED_TRACE(name);
    const ModelCost cost = cost_of_config(name, DType::kBF16);
    const AttentionCost hybrid(cost, Attention::kHybrid, {});
    int64_t matrices = 0;  // of the attention layers, by the list of tensors
    for_each_expected_tensor(cost.config, [&](const ExpectedTensor& tensor) {
      const bool attention = tensor.group == TensorGroup::kKda || tensor.group == TensorGroup::kMla;
      if (attention && tensor.shape.size() == 2) matrices += tensor.num_elements();
    });
    EXPECT_EQ(hybrid.parameters(), static_cast<double>(matrices));
    const StepCost a = hybrid.decode(5000, 3), b = decode_cost(cost, 5000, 3);
    EXPECT_LT(relative(a.bytes(), b.bytes()), 1e-12);
    EXPECT_LT(relative(a.flops(), b.flops()), 1e-12);
    EXPECT_LT(relative(hybrid.prefill(3000).flops(), prefill_cost(cost, 0, 3000, 3000).flops()), 1e-12);
  }
}

}  // namespace
}  // namespace tandem
