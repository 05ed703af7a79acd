// train/modules/gated_act.cpp: SiTU and SwiGLU. The backward pass keeps the two inputs alone.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "train/modules/functional.h"
#include "train/modules/kernel_calls.h"
#include "train/modules/moe.h"

namespace tandem::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// cap · tanh(x / cap) and its derivative; x and 1 where cap is 0.
std::pair<at::Tensor, at::Tensor> capped(const at::Tensor& x, double cap) {
  if (cap == 0) return {x, at::ones({}, x.options())};
  const at::Tensor t = (x / cap).tanh();
  return {cap * t, 1 - t.square()};
}

bool has_kernel(const at::Tensor& gate, const at::Tensor& up) {
  return kernels::take(gate) && gate.numel() % 8 == 0 && up.scalar_type() == gate.scalar_type();
}

class GatedAct : public torch::autograd::Function<GatedAct> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up, double beta,
                            double linear_beta) {
    const at::Tensor a = gate.contiguous(), u = up.contiguous();
    ctx->save_for_backward({a, u});
    ctx->saved_data["beta"] = beta;
    ctx->saved_data["linear_beta"] = linear_beta;
    if (has_kernel(a, u)) return kernels::gated_act_forward(a, u, beta, linear_beta);
    const at::Tensor wide = widen(a);
    return (capped(wide, beta).first * wide.sigmoid() * capped(widen(u), linear_beta).first).to(gate.scalar_type());
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradient) {
    const variable_list saved = ctx->get_saved_variables();
    const double beta = ctx->saved_data["beta"].toDouble(), linear_beta = ctx->saved_data["linear_beta"].toDouble();
    if (has_kernel(saved[0], saved[1])) {
      const auto [grad_gate, grad_up] =
          kernels::gated_act_backward(saved[0], saved[1], beta, linear_beta, gradient[0].contiguous());
      return {grad_gate, grad_up, at::Tensor(), at::Tensor()};
    }
    const at::Tensor d = widen(gradient[0]), a = widen(saved[0]), share = a.sigmoid();
    const auto [gate, gate_slope] = capped(a, beta);
    const auto [up, up_slope] = capped(widen(saved[1]), linear_beta);
    return {(d * up * share * (gate_slope + gate * (1 - share))).to(saved[0].scalar_type()),
            (d * gate * share * up_slope).to(saved[1].scalar_type()), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor gated_act(const ModelConfig& config, const at::Tensor& gate, const at::Tensor& up) {
  const bool situ = config.hidden_act == HiddenAct::kSitu;
  return GatedAct::apply(gate, up, situ ? config.situ_beta : 0.0, situ ? config.situ_linear_beta.value_or(0.0) : 0.0);
}

}  // namespace tandem::train
