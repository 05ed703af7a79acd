// train/modules/device_check_model.cpp: whole small models of both families on a device against double on the CPU.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>

#include "base/cat.h"
#include "train/modules/device_check.h"
#include "train/modules/functional.h"
#include "train/modules/train_model.h"

namespace tandem::train {
namespace {

// Widths that the fused kernels take, or with `odd` such as none of them takes.
ModelConfig small_model(bool k3, bool odd) {
  ModelConfig c;
  c.family = k3 ? ModelFamily::kKimiK3 : ModelFamily::kKimiLinear;
  c.vocab_size = odd ? 19 : 96;
  c.hidden_size = odd ? 10 : 64;
  c.num_hidden_layers = 5;
  c.rms_norm_eps = 1e-5;
  c.kinds = {LayerKind::kKda, LayerKind::kMla, LayerKind::kKda, LayerKind::kMla, LayerKind::kMla};
  c.kda_num_heads = 2;
  c.kda_head_dim = odd ? 5 : 64;
  c.short_conv_kernel_size = 4;
  c.num_attention_heads = 2;
  c.kv_lora_rank = odd ? 6 : 32;
  c.qk_nope_head_dim = odd ? 5 : 32;
  c.qk_rope_head_dim = odd ? 3 : 16;
  c.v_head_dim = odd ? 4 : 32;
  c.intermediate_size = odd ? 9 : 96;
  c.first_k_dense_replace = 1;
  c.num_experts = 6;
  c.num_experts_per_token = 3;
  c.num_shared_experts = 1;
  c.moe_intermediate_size = odd ? 5 : 32;
  c.num_expert_group = 1;
  c.topk_group = 1;
  if (k3) {
    c.gate_lower_bound = -5.0;
    c.use_full_rank_gate = true;
    c.q_lora_rank = odd ? 7 : 48;
    c.mla_use_output_gate = true;
    c.hidden_act = HiddenAct::kSitu;
    c.situ_beta = 4.0;
    c.situ_linear_beta = 25.0;
    c.routed_expert_hidden_size = odd ? 7 : 32;
    c.latent_moe_use_norm = true;
    c.attn_res_mode = AttnResMode::kBlock;
    c.attn_res_block_size = 2;
  } else {
    c.hidden_act = HiddenAct::kSilu;
    c.routed_scaling_factor = 2.446;
    c.attn_res_mode = AttnResMode::kNone;
  }
  return c;
}

// Another order of summation, TF32, and a maximum over parameters: the device may err by so much more than the CPU.
constexpr double kRoom = 3.0;
constexpr int64_t kTokens = 600;
// A gradient of a parameter sums over the tokens in float: no less is asked of a model than of one operator.
const double kSumOverTokens = (8 + 4 * std::sqrt(static_cast<double>(kTokens))) * 0x1p-24;

struct Step {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;  // double, CPU
};

Step run_step(const ModelConfig& config, at::ScalarType parameters, at::ScalarType compute, at::Device device,
              bool recompute) {
  const std::vector<int64_t> bounds = {0, 3, 3, 131, 258, 259, 515, kTokens};
  const TrainModel model = TrainModel::random(config, 7, InitStyle::kCheckpoint, parameters, device);
  const SequenceLayout layout = make_sequence_layout(bounds, 64, device).value();
  const at::Tensor tokens = (at::arange(kTokens, at::kLong) * 7).remainder(config.vocab_size).to(device);
  const at::Tensor mask = at::ones({kTokens}, at::TensorOptions().dtype(at::kFloat).device(device));
  ForwardOptions options;
  options.compute = compute;
  options.recompute_sublayers = recompute;
  const at::Tensor loss = cross_entropy(model.forward(tokens, layout, options), tokens.roll(-1), mask);
  loss.backward();
  Step step;
  step.loss = loss.item<double>();
  for (const Parameter& p : model.parameters()) {
    if (p.value.grad().defined()) step.gradients[p.name] = p.value.grad().to(at::kCPU).to(at::kDouble);
  }
  return step;
}

// The loss, and each parameter's gradient as far as its norm is not small beside all gradients together.
void compare(const Step& found, const Step& expected, CheckResult& result) {
  double squares = 0;
  for (const auto& [name, gradient] : expected.gradients) squares += gradient.square().sum().item<double>();
  const double all = std::sqrt(squares);
  result.error = std::fabs(found.loss - expected.loss) / std::fabs(expected.loss);
  result.worst = cat("loss: found ", found.loss, ", expected ", expected.loss);
  for (const auto& [name, gradient] : expected.gradients) {
    const auto other = found.gradients.find(name);
    double error = INFINITY;
    if (other != found.gradients.end() && other->second.sizes() == gradient.sizes()) {
      const double norm = gradient.norm().item<double>();
      error = (other->second - gradient).norm().item<double>() / (norm + 0.01 * all);
    }
    if (!(error <= result.error)) {
      result.error = error;
      result.worst = cat("d ", name);
      if (std::isnan(error)) return;
    }
  }
}

}  // namespace

void check_models(at::Device device, FunctionRef<void(const CheckResult&)> report) {
  for (const bool k3 : {true, false}) {
    for (const bool odd : {false, true}) {
      for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
        const bool narrow = compute == at::kBFloat16;
        ModelConfig config = small_model(k3, odd);
        // Rounding moves tokens that are near a tie to another expert, which no bound covers: every expert then.
        if (narrow) config.num_experts_per_token = config.num_experts;
        CheckResult result;
        result.name =
            cat("model, ", k3 ? "K3" : "Kimi-Linear", odd ? ", odd widths" : "", narrow ? ", bf16" : ", fp32");
        try {
          const Step expected = run_step(config, at::kDouble, at::kDouble, at::kCPU, false);
          // How far rounding moves a model is its own affair: the CPU in the same types says.
          CheckResult on_cpu;
          compare(run_step(config, at::kFloat, compute, at::kCPU, false), expected, on_cpu);
          result.bound = std::max(kRoom * on_cpu.error, kSumOverTokens);
          compare(run_step(config, at::kFloat, compute, device, !odd), expected, result);
        } catch (const std::exception& failure) {
          result.error = INFINITY;
          result.worst = cat("threw: ", failure.what());
        }
        report(result);
      }
    }
  }
}

}  // namespace tandem::train
