// train/modules/device_bench.cpp: time of each operator, forward and backward, and of a whole training step's passes.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

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

ModelConfig bench_model() {
  ModelConfig c;
  c.family = ModelFamily::kKimiK3;
  c.vocab_size = 3072;
  c.hidden_size = 256;
  c.num_hidden_layers = 13;
  c.rms_norm_eps = 1e-5;
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    c.kinds.push_back(l % 4 == 3 || l + 1 == c.num_hidden_layers ? LayerKind::kMla : LayerKind::kKda);
  }
  c.kda_num_heads = 4;
  c.kda_head_dim = 64;
  c.short_conv_kernel_size = 4;
  c.gate_lower_bound = -5.0;
  c.use_full_rank_gate = true;
  c.num_attention_heads = 4;
  c.q_lora_rank = 128;
  c.kv_lora_rank = 64;
  c.qk_nope_head_dim = 64;
  c.qk_rope_head_dim = 32;
  c.v_head_dim = 64;
  c.mla_use_output_gate = true;
  c.hidden_act = HiddenAct::kSitu;
  c.situ_beta = 4.0;
  c.situ_linear_beta = 25.0;
  c.intermediate_size = 768;
  c.first_k_dense_replace = 1;
  c.num_experts = 32;
  c.num_experts_per_token = 4;
  c.num_shared_experts = 2;
  c.moe_intermediate_size = 128;
  c.routed_expert_hidden_size = 128;
  c.latent_moe_use_norm = true;
  c.num_expert_group = 1;
  c.topk_group = 1;
  c.attn_res_mode = AttnResMode::kBlock;
  c.attn_res_block_size = 4;
  return c;
}

// A layer of the model, or with layer < 0 all of it with its loss.
void bench_model_parts(const SequenceLayout& layout, at::Device device, FunctionRef<void(const BenchResult&)> report) {
  const ModelConfig config = bench_model();
  const TrainModel model = TrainModel::random(config, 1, InitStyle::kTraining, at::kFloat, device);
  const auto options = at::TensorOptions().device(device);
  const at::Tensor x = at::randn({layout.num_tokens, config.hidden_size}, options).to(at::kBFloat16);
  report(time_operator(
      "kda_layer", {x}, [&](const Tensors& in) { return kda_layer(config, model.layer_parameters(0), in[0], layout); },
      device));
  report(time_operator(
      "mla_layer", {x}, [&](const Tensors& in) { return mla_layer(config, model.layer_parameters(3), in[0], layout); },
      device));
  report(time_operator(
      "moe_layer", {x}, [&](const Tensors& in) { return moe_layer(config, model.layer_parameters(1), in[0], {}); },
      device));
  report(time_operator(
      "moe_layer, MXFP4", {x},
      [&](const Tensors& in) { return moe_layer(config, model.layer_parameters(1), in[0], {.mxfp4_experts = true}); },
      device));
  const at::Tensor tokens = at::randint(config.vocab_size, {layout.num_tokens}, options.dtype(at::kLong));
  const at::Tensor mask = at::ones({layout.num_tokens}, options);
  Tensors parameters;
  for (const Parameter& p : model.parameters()) {
    if (p.trainable) parameters.push_back(p.value);
  }
  std::vector<double> forward, backward;
  BenchResult whole;
  for (const bool recompute : {false, true}) {
    for (int i = 0; i < 2 + 3; ++i) {
      wait(device);
      const Clock::time_point begin = Clock::now();
      ForwardOptions run{.compute = at::kBFloat16, .recompute_sublayers = recompute};
      const at::Tensor loss = cross_entropy(model.forward(tokens, layout, run), tokens, mask);
      wait(device);
      const double forward_ms = milliseconds(begin);
      torch::autograd::grad({loss}, parameters, {}, false, false, true);
      wait(device);
      if (i < 2) continue;
      forward.push_back(forward_ms);
      backward.push_back(milliseconds(begin) - forward_ms);
    }
    whole.name = cat("13-layer model with loss", recompute ? ", recomputing" : "");
    whole.forward_ms = median(forward);
    whole.backward_ms = median(backward);
    report(whole);
    forward.clear();
    backward.clear();
  }
}

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
  const int64_t T = shape.tokens;
  const auto wide = [&](at::IntArrayRef sizes) { return at::randn(sizes, at::TensorOptions().device(device)); };
  const auto narrow = [&](at::IntArrayRef sizes) { return wide(sizes).to(at::kBFloat16); };
  const auto time = [&](const char* name, const Tensors& inputs, const std::function<at::Tensor(const Tensors&)>& run) {
    report(time_operator(name, inputs, run, device));
  };
  time("attn_res_mix, 4 sources",
       {narrow({T, 256}), narrow({T, 256}), narrow({T, 256}), narrow({T, 256}), wide({256}), wide({1, 256})},
       [](const Tensors& in) {
         return attn_res_mix({in[0], in[1], in[2], in[3]}, in[4], in[5], 1e-5);
       });
  time("rms_norm", {narrow({T, 256}), wide({256})}, [](const Tensors& in) { return rms_norm(in[0], in[1], 1e-5); });
  time("rms_norm_gated", {narrow({T, 4, 64}), narrow({T, 4, 64}), wide({64})},
       [](const Tensors& in) { return rms_norm_gated(in[0], in[1], in[2], 1e-5); });
  time("short_conv", {narrow({T, 256}), wide({256, 1, 4})},
       [&](const Tensors& in) { return short_conv(in[0], in[1], layout, 64); });
  time("kda_gate", {narrow({T, 4, 64}), wide({4}), wide({256})},
       [](const Tensors& in) { return kda_gate(in[0], in[1], in[2], -5.0); });
  time("gated_act", {narrow({T, 512}), narrow({T, 512})},
       [](const Tensors& in) { return gated_act(bench_model(), in[0], in[1]); });
  time("kda_chunked",
       {l2_norm(narrow({T, 4, 64}), 1e-6), l2_norm(narrow({T, 4, 64}), 1e-6), narrow({T, 4, 64}),
        -5 * wide({T, 4, 64}).sigmoid(), wide({T, 4}).sigmoid()},
       [&](const Tensors& in) {
         KdaInputs inputs;
         inputs.q = in[0];
         inputs.k = in[1];
         inputs.v = in[2];
         inputs.g = in[3];
         inputs.beta = in[4];
         inputs.scale = 0.125;
         inputs.bounded = true;
         return kda_chunked(inputs, layout).out;
       });
  time("causal_attention", {narrow({T, 4, 96}), narrow({T, 4, 96}), narrow({T, 4, 64})},
       [&](const Tensors& in) { return causal_attention(in[0], in[1], in[2], 0.1, layout); });
  const at::Tensor target = at::randint(3072, {T}, at::TensorOptions().dtype(at::kLong).device(device));
  const at::Tensor mask = at::ones({T}, at::TensorOptions().device(device));
  time("cross_entropy", {narrow({T, 3072})}, [&](const Tensors& in) { return cross_entropy(in[0], target, mask); });
  bench_model_parts(layout, device, report);
}

}  // namespace tandem::train
