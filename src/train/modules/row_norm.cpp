// train/modules/row_norm.cpp: RMSNorm, plain and gated. The backward pass keeps x (and the gate) alone.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "train/modules/functional.h"
#include "train/modules/kernel_calls.h"

namespace tandem::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor inverse_rms(const at::Tensor& x, double eps) { return (x.square().mean(-1, true) + eps).rsqrt(); }

bool has_kernel(const at::Tensor& x) { return kernels::take_rows(x, 8) && x.size(-1) <= kernels::max_row_dim(); }

at::Tensor forward_pass(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps) {
  if (has_kernel(x)) return kernels::rms_norm_forward(x, gate, weight.to(at::kFloat).contiguous(), eps);
  const at::Tensor wide = widen(x);
  at::Tensor y = wide * inverse_rms(wide, eps) * widen(weight);
  if (gate.defined()) y = y * widen(gate).sigmoid();
  return y.to(x.scalar_type());
}

// With n = x r and t = dy ⊙ σ(gate): dx = r (t w − n mean(t w n)), dw = Σ t n, dgate = dy n w σ (1 − σ).
kernels::RmsNormGradients backward_pass(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                                        double eps, const at::Tensor& dy) {
  if (has_kernel(x)) {
    return kernels::rms_norm_backward(x, gate, weight.to(at::kFloat).contiguous(), eps, dy.contiguous());
  }
  const at::Tensor wide = widen(x), up = widen(dy), scale = inverse_rms(wide, eps), normal = wide * scale;
  kernels::RmsNormGradients gradients;
  at::Tensor through = up;
  if (gate.defined()) {
    const at::Tensor share = widen(gate).sigmoid();
    gradients.gate = (up * normal * widen(weight) * share * (1 - share)).to(gate.scalar_type());
    through = up * share;
  }
  const at::Tensor weighted = through * widen(weight);
  gradients.x = (scale * (weighted - normal * (weighted * normal).mean(-1, true))).to(x.scalar_type());
  gradients.weight = (through * normal).reshape({-1, weight.size(0)}).sum(0);
  return gradients;
}

class RmsNorm : public torch::autograd::Function<RmsNorm> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, double eps) {
    const at::Tensor dense = x.contiguous();
    ctx->save_for_backward({dense, weight});
    ctx->saved_data["eps"] = eps;
    return forward_pass(dense, {}, weight, eps);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradient) {
    const variable_list saved = ctx->get_saved_variables();
    const auto found = backward_pass(saved[0], {}, saved[1], ctx->saved_data["eps"].toDouble(), gradient[0]);
    return {found.x, found.weight.to(saved[1].scalar_type()), at::Tensor()};
  }
};

class RmsNormGated : public torch::autograd::Function<RmsNormGated> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                            double eps) {
    const at::Tensor dense = x.contiguous(), dense_gate = gate.contiguous();
    ctx->save_for_backward({dense, dense_gate, weight});
    ctx->saved_data["eps"] = eps;
    return forward_pass(dense, dense_gate, weight, eps);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradient) {
    const variable_list saved = ctx->get_saved_variables();
    const auto found = backward_pass(saved[0], saved[1], saved[2], ctx->saved_data["eps"].toDouble(), gradient[0]);
    return {found.x, found.gate, found.weight.to(saved[2].scalar_type()), at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNorm::apply(x, weight, eps);
}

at::Tensor rms_norm_gated(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps) {
  return RmsNormGated::apply(x, gate, weight, eps);
}

}  // namespace tandem::train
