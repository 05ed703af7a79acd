// train/modules/device_bench.cpp: time of each operator, forward and backward, and of a whole training step's passes.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <optional>

#include "base/cat.h"
#include "train/modules/device_check.h"
#include "train/modules/functional.h"
#include "train/modules/kda.h"
#include "train/modules/mla.h"
#include "train/modules/moe.h"
#include "train/modules/train_model.h"

namespace tandem::train {
namespace {

using Tensors = std::vector<at::Tensor>;
using Clock = std::chrono::steady_clock;

constexpr int kWarmUps = 3, kRuns = 10;

// Waits until everything that was queued on the current stream is done.
void wait(at::Device device) { at::zeros({1}, at::TensorOptions().device(device)).item<float>(); }

double milliseconds(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double bytes_of(const at::Tensor& x) { return static_cast<double>(x.numel() * static_cast<int64_t>(x.element_size())); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

BenchResult time_operator(const std::string& name, const Tensors& inputs,
                          const std::function<at::Tensor(const Tensors&)>& run, at::Device device) {
  Tensors leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().set_requires_grad(input.is_floating_point()));
  BenchResult result;
  result.name = name;
  std::vector<double> forward, backward;
  for (int i = 0; i < kWarmUps + kRuns; ++i) {
    wait(device);
    const Clock::time_point begin = Clock::now();
    const at::Tensor out = run(leaves);
    wait(device);
    const double forward_ms = milliseconds(begin);
    const at::Tensor seed = at::ones_like(out);
    wait(device);
    const Clock::time_point middle = Clock::now();
    torch::autograd::grad({out}, leaves, {seed}, false, false, true);
    wait(device);
    if (i >= kWarmUps) {
      forward.push_back(forward_ms);
      backward.push_back(milliseconds(middle));
    }
    result.floor_bytes = 2 * bytes_of(out);
  }
  for (const at::Tensor& leaf : leaves) result.floor_bytes += 3 * bytes_of(leaf);
  result.forward_ms = median(forward);
  result.backward_ms = median(backward);
  return result;
}

using Report = FunctionRef<void(const BenchResult&)>;

// The first layer of which it is true.
std::optional<int64_t> first_layer(const ModelConfig& config, FunctionRef<bool(int64_t)> is_one) {
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (is_one(layer)) return layer;
  }
  return std::nullopt;
}

void bench_layers(const TrainModel& model, const SequenceLayout& layout, at::Device device, Report report) {
  const ModelConfig& config = model.config();
  const at::Tensor x =
      at::randn({layout.num_tokens, config.hidden_size}, at::TensorOptions().device(device)).to(at::kBFloat16);
  const auto kind_is = [&](LayerKind kind) {
    return first_layer(config, [&](int64_t l) { return config.kinds[static_cast<size_t>(l)] == kind; });
  };
  if (const auto layer = kind_is(LayerKind::kKda)) {
    const auto run = [&](const Tensors& in) {
      return kda_layer(config, model.layer_parameters(*layer), in[0], layout);
    };
    report(time_operator("kda_layer", {x}, run, device));
  }
  if (const auto layer = kind_is(LayerKind::kMla)) {
    const auto run = [&](const Tensors& in) {
      return mla_layer(config, model.layer_parameters(*layer), in[0], layout);
    };
    report(time_operator("mla_layer", {x}, run, device));
  }
  if (const auto layer = first_layer(config, [&](int64_t l) { return config.is_moe(l); })) {
    for (const bool mxfp4 : {false, true}) {
      const auto run = [&](const Tensors& in) {
        return moe_layer(config, model.layer_parameters(*layer), in[0], {.mxfp4_experts = mxfp4});
      };
      report(time_operator(mxfp4 ? "moe_layer, MXFP4" : "moe_layer", {x}, run, device));
    }
  }
}

// Forward and backward of the whole model with its loss.
void bench_model(const TrainModel& model, const SequenceLayout& layout, at::Device device, Report report) {
  const int64_t vocab_size = model.config().vocab_size;
  const auto options = at::TensorOptions().device(device);
  const at::Tensor tokens = at::randint(vocab_size, {layout.num_tokens}, options.dtype(at::kLong));
  const at::Tensor mask = at::ones({layout.num_tokens}, options);
  Tensors parameters;
  for (const Parameter& p : model.parameters()) {
    if (p.trainable) parameters.push_back(p.value);
  }
  for (const bool recompute : {false, true}) {
    std::vector<double> forward, backward;
    for (int i = 0; i < 2 + 3; ++i) {
      wait(device);
      const Clock::time_point begin = Clock::now();
      const ForwardOptions run{.compute = at::kBFloat16, .recompute_sublayers = recompute};
      const at::Tensor loss = cross_entropy(model.forward(tokens, layout, run), tokens, mask);
      wait(device);
      const double forward_ms = milliseconds(begin);
      torch::autograd::grad({loss}, parameters, {}, false, false, true);
      wait(device);
      if (i < 2) continue;
      forward.push_back(forward_ms);
      backward.push_back(milliseconds(begin) - forward_ms);
    }
    BenchResult whole;
    whole.name = cat(model.config().num_hidden_layers, "-layer model with loss", recompute ? ", recomputing" : "");
    whole.forward_ms = median(forward);
    whole.backward_ms = median(backward);
    report(whole);
  }
}

// Random inputs of one model's widths, and the time of an operator on them.
class OperatorBench {
 public:
  OperatorBench(const ModelConfig& config, const SequenceLayout& layout, at::Device device, Report report)
      : config_(config), layout_(layout), device_(device), report_(report) {}

  void run() const {
    const int64_t T = layout_.num_tokens, D = config_.hidden_size;
    time("attn_res_mix, 4 sources",
         {narrow({T, D}), narrow({T, D}), narrow({T, D}), narrow({T, D}), wide({D}), wide({1, D})},
         [](const Tensors& in) {
           return attn_res_mix({in[0], in[1], in[2], in[3]}, in[4], in[5], 1e-5);
         });
    time("rms_norm", {narrow({T, D}), wide({D})}, [](const Tensors& in) { return rms_norm(in[0], in[1], 1e-5); });
    const int64_t width = config_.num_experts > 0 ? config_.num_experts_per_token * config_.moe_intermediate_size
                                                  : config_.intermediate_size;
    time("gated_act", {narrow({T, width}), narrow({T, width})},
         [&](const Tensors& in) { return gated_act(config_, in[0], in[1]); });
    if (config_.kda_num_heads > 0) run_kda();
    if (config_.num_layers_of(LayerKind::kMla) > 0) run_attention();
    const at::TensorOptions options = at::TensorOptions().device(device_);
    const at::Tensor target = at::randint(config_.vocab_size, {T}, options.dtype(at::kLong));
    const at::Tensor mask = at::ones({T}, options);
    time("cross_entropy", {narrow({T, config_.vocab_size})},
         [&](const Tensors& in) { return cross_entropy(in[0], target, mask); });
  }

 private:
  void run_kda() const {
    const int64_t T = layout_.num_tokens, H = config_.kda_num_heads, K = config_.kda_head_dim;
    time("rms_norm_gated", {narrow({T, H, K}), narrow({T, H, K}), wide({K})},
         [](const Tensors& in) { return rms_norm_gated(in[0], in[1], in[2], 1e-5); });
    time("short_conv", {narrow({T, H * K}), wide({H * K, 1, config_.short_conv_kernel_size})},
         [&](const Tensors& in) { return short_conv(in[0], in[1], layout_, K); });
    time("kda_gate", {narrow({T, H, K}), wide({H}), wide({H * K})},
         [&](const Tensors& in) { return kda_gate(in[0], in[1], in[2], config_.gate_lower_bound); });
    const auto chunked = [&](const Tensors& in) {
      KdaInputs inputs;
      inputs.q = in[0];
      inputs.k = in[1];
      inputs.v = in[2];
      inputs.g = in[3];
      inputs.beta = in[4];
      inputs.scale = 1 / std::sqrt(static_cast<double>(K));
      inputs.bounded = config_.gate_lower_bound.has_value();
      return kda_chunked(inputs, layout_).out;
    };
    time("kda_chunked",
         {l2_norm(narrow({T, H, K}), 1e-6), l2_norm(narrow({T, H, K}), 1e-6), narrow({T, H, K}),
          -5 * wide({T, H, K}).sigmoid(), wide({T, H}).sigmoid()},
         chunked);
  }

  void run_attention() const {
    const int64_t T = layout_.num_tokens, H = config_.num_attention_heads, K = config_.qk_head_dim();
    const double scale = 1 / std::sqrt(static_cast<double>(K));
    time("causal_attention", {narrow({T, H, K}), narrow({T, H, K}), narrow({T, H, config_.v_head_dim})},
         [&](const Tensors& in) { return causal_attention(in[0], in[1], in[2], scale, layout_); });
  }

  at::Tensor wide(at::IntArrayRef sizes) const { return at::randn(sizes, at::TensorOptions().device(device_)); }
  at::Tensor narrow(at::IntArrayRef sizes) const { return wide(sizes).to(at::kBFloat16); }
  void time(const char* name, const Tensors& inputs, const std::function<at::Tensor(const Tensors&)>& run) const {
    report_(time_operator(name, inputs, run, device_));
  }

  const ModelConfig& config_;
  const SequenceLayout& layout_;
  at::Device device_;
  Report report_;
};

}  // namespace

double copy_bandwidth(at::Device device) {
  const at::Tensor from = at::ones({1 << 28}, at::TensorOptions().device(device)), to = at::empty_like(from);
  std::vector<double> times;
  for (int i = 0; i < kWarmUps + kRuns; ++i) {
    to.copy_(from);
    wait(device);
    const Clock::time_point begin = Clock::now();
    for (int n = 0; n < 4; ++n) to.copy_(from);
    wait(device);
    times.push_back(milliseconds(begin) / 4);
  }
  return 2 * bytes_of(from) / median(times) * 1e3;
}

void bench_device(at::Device device, const BenchShape& shape, FunctionRef<void(const BenchResult&)> report) {
  std::vector<int64_t> bounds = {0};
  while (bounds.back() < shape.tokens) bounds.push_back(std::min(shape.tokens, bounds.back() + shape.document));
  const SequenceLayout layout = make_sequence_layout(bounds, 64, device).value();
  OperatorBench(shape.config, layout, device, report).run();
  const TrainModel model = TrainModel::random(shape.config, 1, InitStyle::kTraining, at::kFloat, device);
  bench_layers(model, layout, device, report);
  bench_model(model, layout, device, report);
}

}  // namespace tandem::train
