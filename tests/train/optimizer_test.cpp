// Per-Head Muon, AdamW, clipping, schedule: against SVD, against plain loops, and on a model that has to learn.
#include "train/optim/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "train/gradient_check.h"
#include "train/modules/functional.h"
#include "train/optim/muon.h"
#include "train/optim/schedule.h"
#include "train/small_models.h"

namespace tandem::train {
namespace {

using test::random_leaf;

double max_distance(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

// The singular vectors stay, the singular values go to the iteration's band.
TEST(Muon, OrthogonalWithinTheBound) {
  for (const auto& shape : {std::vector<int64_t>{3, 5, 9}, {2, 16, 16}, {4, 33, 7}, {1, 64, 48}}) {
    const at::Tensor blocks = random_leaf(shape, 3).detach();
    const at::Tensor direction = orthogonalize(blocks);
    const auto [u, s, vh] = at::linalg_svd(blocks, /*full_matrices=*/false);
    const at::Tensor values = at::matmul(u.transpose(1, 2), at::matmul(direction, vh.transpose(1, 2)));
    const at::Tensor diagonal = values.diagonal(0, 1, 2);
    EXPECT_LE(max_distance(values, at::diag_embed(diagonal)), 1e-10);
    // Values below 1 % of the norm are still on their way up after five steps.
    const at::Tensor share = s / s.square().sum(1, true).sqrt();
    const at::Tensor settled = diagonal.masked_select(share > 0.01);
    EXPECT_GE(settled.min().item<double>(), 0.65);
    EXPECT_LE(settled.max().item<double>(), 1.25);
  }
}

TEST(Muon, EveryBlockOnItsOwn) {
  const at::Tensor blocks = random_leaf({3, 5, 9}, 3).detach();
  const at::Tensor together = orthogonalize(blocks);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_LE(max_distance(together.select(0, i), orthogonalize(blocks.narrow(0, i, 1)).select(0, 0)), 1e-14);
  }
}

TEST(Muon, BlocksCoverTheParameterOnce) {
  const ModelConfig config = test::small_k3();
  TrainModel model = TrainModel::random(config, 1, InitStyle::kTraining);
  int muon = 0;
  for (const Parameter& p : model.parameters()) {
    if (!is_muon_role(p.role)) continue;
    ++muon;
    const at::Tensor counts = at::zeros_like(p.value.detach());
    int64_t blocks = 0;
    for (at::Tensor view : muon_blocks(config, p.role, counts)) {
      view.add_(1);
      blocks += view.size(0);
    }
    EXPECT_TRUE(counts.eq(1).all().item<bool>()) << p.name;
    int64_t expected = 0;  // 0: not checked here
    if (p.role == TensorRole::kKdaQProj) expected = config.kda_num_heads;
    if (p.role == TensorRole::kMlaQBProj) expected = config.num_attention_heads;
    if (p.role == TensorRole::kMlaKvBProj) expected = 2 * config.num_attention_heads;
    if (p.role == TensorRole::kExpertW2) expected = config.num_experts;
    if (expected > 0) {
      EXPECT_EQ(blocks, expected) << p.name;
    }
  }
  EXPECT_GT(muon, 40);
}

Parameter parameter(const char* name, TensorRole role, at::Tensor value) {
  Parameter p;
  p.name = name;
  p.role = role;
  p.value = std::move(value);
  return p;
}

TEST(Optimizer, MuonStepByHand) {
  const ModelConfig config = test::small_k3();
  std::vector<Parameter> parameters;
  parameters.push_back(parameter("q", TensorRole::kKdaQProj, random_leaf({15, 10}, 1)));
  Optimizer optimizer(config, parameters, {});
  at::Tensor expected = parameters[0].value.detach().clone(), momentum = at::zeros({15, 10}, at::kDouble);
  for (uint64_t step = 0; step < 3; ++step) {
    const at::Tensor gradient = random_leaf({15, 10}, 10 + step).detach();
    parameters[0].value.mutable_grad() = gradient.clone();
    optimizer.step(0.02);
    momentum = 0.95 * momentum + gradient;
    const at::Tensor direction = gradient + 0.95 * momentum;
    expected = expected * (1 - 0.02 * 0.1);
    for (int64_t h = 0; h < 3; ++h) {
      const at::Tensor head = orthogonalize(direction.narrow(0, 5 * h, 5).unsqueeze(0)).squeeze(0);
      expected.narrow(0, 5 * h, 5).sub_(head, 0.02 * 0.2 * std::sqrt(10.0));
    }
  }
  EXPECT_LE(max_distance(parameters[0].value.detach(), expected), 1e-13);
  ASSERT_EQ(optimizer.state().size(), 1u);
  EXPECT_EQ(optimizer.state()[0].first, "q.momentum");
  EXPECT_LE(max_distance(optimizer.state()[0].second, momentum), 1e-13);
}

TEST(Optimizer, AdamWStepByHand) {
  const ModelConfig config = test::small_k3();
  std::vector<Parameter> parameters;
  parameters.push_back(parameter("embed", TensorRole::kEmbedTokens, random_leaf({4, 3}, 1)));
  parameters.push_back(parameter("norm", TensorRole::kFinalNorm, random_leaf({3}, 2)));
  parameters.push_back(parameter("idle", TensorRole::kInputLayernorm, random_leaf({3}, 3)));
  const at::Tensor idle = parameters[2].value.detach().clone();
  for (size_t index = 0; index < 2; ++index) {
    std::vector<double> value(12), first(12), second(12);
    const int64_t n = parameters[index].value.numel();
    for (int64_t i = 0; i < n; ++i) value[static_cast<size_t>(i)] = parameters[index].value.data_ptr<double>()[i];
    Optimizer optimizer(config, parameters, {});
    for (int t = 1; t <= 3; ++t) {
      const at::Tensor gradient = random_leaf(parameters[index].value.sizes(), 20 + static_cast<uint64_t>(t)).detach();
      optimizer.zero_grad();
      parameters[index].value.mutable_grad() = gradient.clone();
      optimizer.step(0.01);
      for (int64_t i = 0; i < n; ++i) {
        const auto j = static_cast<size_t>(i);
        const double g = gradient.data_ptr<double>()[i];
        first[j] = 0.9 * first[j] + 0.1 * g;
        second[j] = 0.95 * second[j] + 0.05 * g * g;
        if (index == 0) value[j] *= 1 - 0.01 * 0.1;  // norms do not decay
        value[j] -=
            0.01 * (first[j] / (1 - std::pow(0.9, t))) / (std::sqrt(second[j] / (1 - std::pow(0.95, t))) + 1e-8);
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_NEAR(parameters[index].value.data_ptr<double>()[i], value[static_cast<size_t>(i)], 1e-13);
    }
  }
  EXPECT_TRUE(parameters[2].value.detach().equal(idle));
}

TEST(Optimizer, ClipsByTheGlobalNorm) {
  std::vector<Parameter> parameters;
  parameters.push_back(parameter("a", TensorRole::kFinalNorm, random_leaf({2}, 1)));
  parameters.push_back(parameter("b", TensorRole::kInputLayernorm, random_leaf({1}, 2)));
  Optimizer optimizer(test::small_k3(), parameters, {});
  parameters[0].value.mutable_grad() = at::tensor({3.0, 0.0}, at::kDouble);
  parameters[1].value.mutable_grad() = at::tensor({4.0}, at::kDouble);
  EXPECT_DOUBLE_EQ(optimizer.clip_gradients(10.0), 5.0);
  EXPECT_DOUBLE_EQ(parameters[1].value.grad().item<double>(), 4.0);
  EXPECT_DOUBLE_EQ(optimizer.clip_gradients(1.0), 5.0);
  EXPECT_DOUBLE_EQ(parameters[1].value.grad().item<double>(), 0.8);
  parameters[1].value.mutable_grad() = at::tensor({std::nan("")}, at::kDouble);
  EXPECT_TRUE(std::isnan(optimizer.clip_gradients(1.0)));
  EXPECT_NEAR(parameters[0].value.grad().select(0, 0).item<double>(), 0.6, 1e-15);
}

TEST(Schedule, WarmUpThenCosine) {
  const LearningRateSchedule schedule{.peak = 2.0, .num_steps = 1000, .warmup_share = 0.01, .final_share = 0.1};
  EXPECT_DOUBLE_EQ(schedule.at(0), 0.2);
  EXPECT_DOUBLE_EQ(schedule.at(9), 2.0);
  EXPECT_DOUBLE_EQ(schedule.at(10), 2.0);
  EXPECT_DOUBLE_EQ(schedule.at(999), 0.2);
  EXPECT_NEAR(schedule.at(504), 1.1, 0.01);
  for (int64_t step = 10; step < 999; ++step) EXPECT_GE(schedule.at(step), schedule.at(step + 1));
}

// Both families learn a repeating sequence: the loss falls from ln(vocab) to next to nothing.
TEST(Optimizer, ModelsLearn) {
  for (const ModelConfig& config : {test::small_k3(), test::small_kimi_linear()}) {
    TrainModel model = TrainModel::random(config, 3, InitStyle::kTraining);
    Optimizer optimizer(config, model.parameters(), {});
    const std::vector<int64_t> bounds = {0, 24, 40};
    const SequenceLayout layout = make_sequence_layout(bounds, 16, at::kCPU).value();
    const at::Tensor tokens = (at::arange(40, at::kLong) * 5 + 2).remainder(config.vocab_size);
    const at::Tensor targets = (tokens + 5).remainder(config.vocab_size);
    const at::Tensor mask = at::ones({40}, at::kFloat);
    const LearningRateSchedule schedule{.peak = 0.02, .num_steps = 60};
    double first = 0, last = 0;
    for (int64_t step = 0; step < schedule.num_steps; ++step) {
      optimizer.zero_grad();
      const at::Tensor loss = cross_entropy(model.forward(tokens, layout, {}), targets, mask);
      loss.backward();
      ASSERT_TRUE(std::isfinite(optimizer.clip_gradients(1.0)));
      optimizer.step(schedule.at(step));
      last = loss.item<double>();
      if (step == 0) first = last;
    }
    EXPECT_NEAR(first, std::log(19.0), 0.5);
    EXPECT_LT(last, 0.3);
  }
}

}  // namespace
}  // namespace tandem::train
