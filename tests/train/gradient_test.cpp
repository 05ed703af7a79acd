// Gradients of every module and of whole models against central differences in fp64: odd sizes, packed documents with
// an empty one among them, the K3 and the Kimi-Linear form.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/cat.h"
#include "train/gradient_check.h"
#include "train/modules/functional.h"
#include "train/modules/kda.h"
#include "train/modules/mla.h"
#include "train/modules/moe.h"
#include "train/modules/train_model.h"
#include "train/small_models.h"

namespace tandem::train {
namespace {

using test::expect_gradients;
using test::NamedTensors;
using test::random_leaf;

SequenceLayout packed(std::vector<int64_t> cu_seqlens, int64_t chunk_size = 16) {
  return make_sequence_layout(cu_seqlens, chunk_size, at::kCPU).value();
}

TEST(Gradient, Norms) {
  const at::Tensor x = random_leaf({3, 7}, 1), gate = random_leaf({3, 7}, 2), w = random_leaf({7}, 3);
  expect_gradients([&] { return rms_norm(x, w, 1e-5); }, {{"x", x}, {"w", w}});
  expect_gradients([&] { return rms_norm_gated(x, gate, w, 1e-5); }, {{"x", x}, {"gate", gate}, {"w", w}});
  expect_gradients([&] { return l2_norm(x, 1e-6); }, {{"x", x}});
}

TEST(Gradient, AttnRes) {
  const at::Tensor a = random_leaf({3, 5}, 1), b = random_leaf({3, 5}, 2), c = random_leaf({3, 5}, 3);
  const at::Tensor norm = random_leaf({5}, 4), proj = random_leaf({1, 5}, 5);
  expect_gradients(
      [&] {
        return attn_res_mix({a, b, c}, norm, proj, 1e-5);
      },
      {{"a", a}, {"b", b}, {"c", c}, {"norm", norm}, {"proj", proj}});
}

TEST(Gradient, CrossEntropy) {
  const at::Tensor logits = random_leaf({4, 7}, 1);
  const at::Tensor target = at::tensor({3, 0, 6, 1}, at::kLong), mask = at::tensor({1.0, 0.0, 0.5, 1.0}, at::kDouble);
  expect_gradients([&] { return cross_entropy(logits, target, mask); }, {{"logits", logits}});
  // A masked row, whatever it holds, changes nothing.
  at::Tensor poisoned = logits.detach().clone();
  poisoned.select(0, 1).fill_(std::nan(""));
  EXPECT_EQ(cross_entropy(poisoned, target, mask).item<double>(), cross_entropy(logits, target, mask).item<double>());
  EXPECT_EQ(cross_entropy(logits, target, at::zeros({4}, at::kDouble)).item<double>(), 0.0);
  const at::Tensor expected = -(logits.log_softmax(1).gather(1, target.unsqueeze(1)).squeeze(1) * mask).sum() / 2.5;
  EXPECT_NEAR(cross_entropy(logits, target, mask).item<double>(), expected.item<double>(), 1e-14);
}

TEST(Gradient, ShortConv) {
  const at::Tensor x = random_leaf({11, 3}, 1), w = random_leaf({3, 1, 4}, 2);
  for (const auto& bounds : {std::vector<int64_t>{0, 11}, {0, 2, 2, 9, 10, 11}}) {
    expect_gradients([&, layout = packed(bounds)] { return short_conv(x, w, layout); }, {{"x", x}, {"w", w}});
  }
}

TEST(Gradient, KdaGate) {
  const at::Tensor z = random_leaf({4, 2, 3}, 1, 3.0), a_log = random_leaf({2}, 2, 0.5), bias = random_leaf({6}, 3);
  for (const std::optional<double> bound : {std::optional(-5.0), std::optional<double>()}) {
    expect_gradients([&] { return kda_gate(z, a_log, bias, bound); }, {{"z", z}, {"a_log", a_log}, {"bias", bias}});
  }
}

// Token by token, in fp64: the recurrence of model.md §3.4.
KdaOutputs recurrent(const KdaInputs& in, const std::vector<int64_t>& bounds) {
  std::vector<at::Tensor> out, states;
  for (size_t n = 0; n + 1 < bounds.size(); ++n) {
    at::Tensor state = in.initial_state.select(0, static_cast<int64_t>(n));
    for (int64_t t = bounds[n]; t < bounds[n + 1]; ++t) {
      const at::Tensor q = in.q.select(0, t).unsqueeze(-1), k = in.k.select(0, t).unsqueeze(-1);
      state = in.g.select(0, t).unsqueeze(-1).exp() * state;
      const at::Tensor read = (state * k).sum(1);
      const at::Tensor delta = in.beta.select(0, t).unsqueeze(-1) * (in.v.select(0, t) - read);
      state = state + k * delta.unsqueeze(1);
      out.push_back(in.scale * (state * q).sum(1));
    }
    states.push_back(state);
  }
  return {at::stack(out), at::stack(states)};
}

TEST(Gradient, KdaChunked) {
  const std::vector<int64_t> bounds = {0, 3, 3, 41, 58, 59};  // in chunks of 16: 1, 0, 3, 2 and 1
  const int64_t T = bounds.back(), H = 2, K = 3, V = 5, N = static_cast<int64_t>(bounds.size()) - 1;
  const at::Tensor q = random_leaf({T, H, K}, 1), k = random_leaf({T, H, K}, 2), v = random_leaf({T, H, V}, 3);
  const at::Tensor z = random_leaf({T, H, K}, 4, 2.0), beta = random_leaf({T, H}, 5), s = random_leaf({N, H, K, V}, 6);
  for (const bool bounded : {true, false}) {
    const auto inputs = [&] {
      KdaInputs in;
      in.q = l2_norm(q, 1e-6);
      in.k = l2_norm(k, 1e-6);
      in.v = v;
      in.g = bounded ? -5.0 * z.sigmoid() : -z.exp();
      in.beta = beta.sigmoid();
      in.scale = 0.7;
      in.bounded = bounded;
      in.initial_state = s;
      return in;
    };
    for (const int64_t chunk_size : {16, 32}) {
      SCOPED_TRACE(cat(bounded ? "bounded" : "unbounded", ", chunks of ", chunk_size));
      const SequenceLayout layout = packed(bounds, chunk_size);
      const KdaOutputs chunked = kda_chunked(inputs(), layout), expected = recurrent(inputs(), bounds);
      EXPECT_LE((chunked.out - expected.out).abs().max().item<double>(), 1e-13);
      EXPECT_LE((chunked.state - expected.state).abs().max().item<double>(), 1e-13);
      expect_gradients(
          [&] {
            const KdaOutputs outputs = kda_chunked(inputs(), layout);
            return at::cat({outputs.out.flatten(), outputs.state.flatten()});
          },
          {{"q", q}, {"k", k}, {"v", v}, {"z", z}, {"beta", beta}, {"state", s}});
    }
  }
}

TEST(Gradient, CausalAttention) {
  const std::vector<int64_t> bounds = {0, 3, 3, 8, 9};
  const at::Tensor q = random_leaf({9, 2, 3}, 1), k = random_leaf({9, 2, 3}, 2), v = random_leaf({9, 2, 4}, 3);
  expect_gradients([&, layout = packed(bounds)] { return causal_attention(q, k, v, 0.6, layout); },
                   {{"q", q}, {"k", k}, {"v", v}});
}

// More rows than a block of queries has, against one softmax over all of them.
TEST(Gradient, CausalAttentionInQueryBlocks) {
  const int64_t T = 1100;
  const at::Tensor q = random_leaf({T, 1, 3}, 1), k = random_leaf({T, 1, 3}, 2), v = random_leaf({T, 1, 2}, 3);
  const at::Tensor scores =
      at::matmul(q.squeeze(1), k.squeeze(1).t()).masked_fill(at::ones({T, T}, at::kBool).triu(1), -INFINITY);
  const at::Tensor expected = at::matmul(scores.softmax(1), v.squeeze(1));
  const at::Tensor actual = causal_attention(q, k, v, 1.0, packed({0, T})).squeeze(1);
  EXPECT_LE((actual - expected).abs().max().item<double>(), 1e-13);
}

class GradientModel : public ::testing::TestWithParam<const char*> {
 protected:
  static ModelConfig config() {
    const std::string name = GetParam();
    ModelConfig c = name == "kimi_linear" ? test::small_kimi_linear() : test::small_k3();
    if (name == "k3_full_attn_res") c.attn_res_mode = AttnResMode::kFull;
    return c;
  }
  static TrainModel model() { return TrainModel::random(config(), 7, InitStyle::kCheckpoint, at::kDouble); }
  // The trainable tensors of one layer that `wanted` accepts.
  static NamedTensors tensors(const TrainModel& model, int64_t layer, const std::function<bool(TensorGroup)>& wanted) {
    NamedTensors found;
    for (const Parameter& p : model.parameters()) {
      if (p.layer == layer && p.trainable && wanted(p.group)) found.emplace_back(p.name, p.value);
    }
    return found;
  }
};

TEST_P(GradientModel, KdaLayer) {
  const TrainModel m = model();
  const at::Tensor x = random_leaf({21, m.config().hidden_size}, 1);
  NamedTensors inputs = tensors(m, 0, [](TensorGroup group) { return group == TensorGroup::kKda; });
  EXPECT_GE(inputs.size(), 13u);
  inputs.emplace_back("x", x);
  expect_gradients(
      [&, layout = packed({0, 17, 21})] { return kda_layer(m.config(), m.layer_parameters(0), x, layout); }, inputs);
}

TEST_P(GradientModel, MlaLayer) {
  const TrainModel m = model();
  const int64_t layer = m.config().num_hidden_layers - 1;
  const at::Tensor x = random_leaf({9, m.config().hidden_size}, 1);
  NamedTensors inputs = tensors(m, layer, [](TensorGroup group) { return group == TensorGroup::kMla; });
  EXPECT_GE(inputs.size(), 5u);
  inputs.emplace_back("x", x);
  expect_gradients(
      [&, layout = packed({0, 2, 9})] { return mla_layer(m.config(), m.layer_parameters(layer), x, layout); }, inputs);
}

TEST_P(GradientModel, FeedForwardLayers) {
  const TrainModel m = model();
  const at::Tensor x = random_leaf({13, m.config().hidden_size}, 1);
  NamedTensors inputs = tensors(m, 0, [](TensorGroup group) { return group == TensorGroup::kDenseMlp; });
  EXPECT_EQ(inputs.size(), 3u);
  inputs.emplace_back("x", x);
  expect_gradients([&] { return dense_mlp(m.config(), m.layer_parameters(0), x); }, inputs);

  inputs = tensors(m, 1, [](TensorGroup group) {
    return group == TensorGroup::kRouter || group == TensorGroup::kLatent || group == TensorGroup::kSharedExpert ||
           group == TensorGroup::kRoutedExpert;
  });
  EXPECT_GE(inputs.size(), 7u);
  inputs.emplace_back("x", x);
  expect_gradients([&] { return moe_layer(m.config(), m.layer_parameters(1), x, {}); }, inputs, 60);
}

TEST_P(GradientModel, EveryParameterOfTheModel) {
  const TrainModel m = model();
  NamedTensors inputs;
  for (const Parameter& p : m.parameters()) {
    EXPECT_EQ(p.value.requires_grad(), p.role != TensorRole::kRouterBias) << p.name;
    if (p.trainable) inputs.emplace_back(p.name, p.value);
  }
  const at::Tensor tokens = at::arange(20, at::kLong).remainder(19);
  const at::Tensor mask = at::ones({20}, at::kDouble);
  const SequenceLayout layout = packed({0, 18, 20});
  expect_gradients(
      [&] {
        return cross_entropy(m.forward(tokens, layout, {.compute = at::kDouble}), tokens.roll(-1), mask).reshape({1});
      },
      inputs, 3,
      {"language_model.model.layers.0.self_attention_res_norm.weight",
       "language_model.model.layers.0.self_attention_res_proj.weight"});
}

// Logits and gradients of a packed batch are those of its documents one at a time.
TEST_P(GradientModel, PackedIsSeparate) {
  const TrainModel m = model();
  const std::vector<int64_t> bounds = {0, 5, 5, 38, 39, 47};
  const at::Tensor tokens = (at::arange(47, at::kLong) * 7).remainder(19);
  const ForwardOptions options{.compute = at::kDouble};
  const at::Tensor weights = random_leaf({47, 19}, 3).detach();
  const auto gradients = [&] {
    std::vector<at::Tensor> found;
    for (const Parameter& p : m.parameters()) {
      if (!p.trainable) continue;
      found.push_back(p.value.grad().defined() ? p.value.grad().clone() : at::zeros_like(p.value));
      p.value.mutable_grad() = at::Tensor();
    }
    return found;
  };
  const at::Tensor together = m.forward(tokens, packed(bounds), options);
  (together * weights).sum().backward();
  const std::vector<at::Tensor> packed_gradients = gradients();
  for (size_t n = 0; n + 1 < bounds.size(); ++n) {
    const int64_t length = bounds[n + 1] - bounds[n];
    if (length == 0) continue;
    const at::Tensor alone = m.forward(tokens.narrow(0, bounds[n], length), packed({0, length}), options);
    EXPECT_LE((alone - together.narrow(0, bounds[n], length)).abs().max().item<double>(), 1e-12) << "document " << n;
    (alone * weights.narrow(0, bounds[n], length)).sum().backward();
  }
  const std::vector<at::Tensor> separate_gradients = gradients();
  for (size_t i = 0; i < packed_gradients.size(); ++i) {
    const double scale = 1.0 + packed_gradients[i].abs().max().item<double>();
    EXPECT_LE((packed_gradients[i] - separate_gradients[i]).abs().max().item<double>(), 1e-11 * scale);
  }
}

// Running sublayers again in the backward pass changes no value, no gradient and not what the router reported.
TEST_P(GradientModel, RecomputedIsKept) {
  const TrainModel m = model();
  const at::Tensor tokens = (at::arange(40, at::kLong) * 7).remainder(19);
  const at::Tensor weights = random_leaf({40, 19}, 3).detach();
  std::vector<at::Tensor> logits, gradients[2];
  std::vector<Routing> routing[2];
  for (size_t i = 0; i < 2; ++i) {
    const ForwardOptions options{.compute = at::kDouble, .recompute_sublayers = i == 1, .routing = &routing[i]};
    logits.push_back(m.forward(tokens, packed({0, 21, 40}), options));
    (logits.back() * weights).sum().backward();
    for (const Parameter& p : m.parameters()) {
      if (p.value.grad().defined()) gradients[i].push_back(p.value.grad());
      p.value.mutable_grad() = at::Tensor();
    }
  }
  EXPECT_TRUE(logits[0].equal(logits[1]));
  ASSERT_EQ(gradients[0].size(), gradients[1].size());
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    const double scale = 1.0 + gradients[0][i].abs().max().item<double>();
    EXPECT_LE((gradients[0][i] - gradients[1][i]).abs().max().item<double>(), 1e-11 * scale);
  }
  EXPECT_TRUE(routing[0].back().ids.equal(routing[1].back().ids));
  EXPECT_TRUE(routing[0].back().scores.equal(routing[1].back().scores));
}

INSTANTIATE_TEST_SUITE_P(Forms, GradientModel, ::testing::Values("k3", "k3_full_attn_res", "kimi_linear"));

}  // namespace
}  // namespace tandem::train
