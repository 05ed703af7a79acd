// train/modules/attn_res_mix.cpp: the mix of residual sources. The backward pass keeps the sources alone.
//
//   With scores s_i = r_i ⟨v_i, w⟩, w = norm ⊙ proj, shares a = softmax(s) and h = Σ a_i v_i:
//     ds_i = a_i (⟨dh, v_i⟩ − ⟨dh, h⟩)      dv_i = a_i dh + ds_i (r_i w − ⟨v_i, w⟩ r_i³ v_i / D)
//     dw = Σ ds_i r_i v_i
//   Source: systems.md §9.5.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "train/modules/functional.h"
#include "train/modules/kernel_calls.h"

namespace tandem::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Scores {
  at::Tensor dot, inverse_rms, share;  // [sources, T, 1]
};

Scores score(const variable_list& sources, const at::Tensor& score_weight, double eps) {
  variable_list dots, scales;
  for (const at::Tensor& source : sources) {
    const at::Tensor wide = widen(source);
    dots.push_back(at::matmul(wide, score_weight));
    scales.push_back((wide.square().mean(-1) + eps).rsqrt());
  }
  Scores scores{at::stack(dots).unsqueeze(-1), at::stack(scales).unsqueeze(-1), {}};
  scores.share = (scores.dot * scores.inverse_rms).softmax(0);
  return scores;
}

bool has_kernel(const variable_list& sources) {
  const at::Tensor& first = sources[0];
  bool alike = kernels::take_rows(first, 8) && first.size(1) <= kernels::max_row_dim() &&
               static_cast<int64_t>(sources.size()) <= kernels::max_sources();
  for (const at::Tensor& source : sources) alike = alike && source.scalar_type() == first.scalar_type();
  return alike;
}

at::Tensor forward_pass(const variable_list& sources, const at::Tensor& score_weight, double eps) {
  if (has_kernel(sources)) return kernels::attn_res_forward(sources, score_weight, eps);
  const at::Tensor share = score(sources, score_weight, eps).share;
  at::Tensor mixed = share[0] * widen(sources[0]);
  for (size_t i = 1; i < sources.size(); ++i) mixed.addcmul_(share[static_cast<int64_t>(i)], widen(sources[i]));
  return mixed.to(sources[0].scalar_type());
}

kernels::AttnResGradients backward_pass(const variable_list& sources, const at::Tensor& score_weight, double eps,
                                        const at::Tensor& gradient) {
  if (has_kernel(sources)) return kernels::attn_res_backward(sources, score_weight, eps, gradient.contiguous());
  const at::Tensor dh = widen(gradient);
  const Scores scores = score(sources, score_weight, eps);
  variable_list products;
  for (const at::Tensor& source : sources) products.push_back((dh * widen(source)).sum(-1, true));
  const at::Tensor product = at::stack(products);
  const at::Tensor score_gradient = scores.share * (product - (scores.share * product).sum(0, true));
  const at::Tensor of_weight = score_gradient * scores.inverse_rms;
  const at::Tensor of_source = -of_weight * scores.dot * scores.inverse_rms.square() / static_cast<double>(dh.size(1));
  kernels::AttnResGradients gradients;
  gradients.score_weight = at::zeros_like(score_weight);
  for (size_t i = 0; i < sources.size(); ++i) {
    const auto n = static_cast<int64_t>(i);
    const at::Tensor wide = widen(sources[i]);
    const at::Tensor dv = scores.share[n] * dh + of_weight[n] * score_weight + of_source[n] * wide;
    gradients.sources.push_back(dv.to(sources[i].scalar_type()));
    gradients.score_weight += at::matmul(of_weight[n].t(), wide).squeeze(0);
  }
  return gradients;
}

class AttnResMix : public torch::autograd::Function<AttnResMix> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& score_weight, double eps, at::TensorList sources) {
    variable_list kept = {score_weight};
    for (const at::Tensor& source : sources) kept.push_back(source.contiguous());
    ctx->save_for_backward(kept);
    ctx->saved_data["eps"] = eps;
    return forward_pass({kept.begin() + 1, kept.end()}, score_weight, eps);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradient) {
    const variable_list saved = ctx->get_saved_variables();
    const kernels::AttnResGradients found =
        backward_pass({saved.begin() + 1, saved.end()}, saved[0], ctx->saved_data["eps"].toDouble(), gradient[0]);
    variable_list all = {found.score_weight, at::Tensor()};
    all.insert(all.end(), found.sources.begin(), found.sources.end());
    return all;
  }
};

}  // namespace

at::Tensor attn_res_mix(const std::vector<at::Tensor>& sources, const at::Tensor& norm, const at::Tensor& proj,
                        double eps) {
  const at::Tensor score_weight = widen(norm) * widen(proj).reshape({-1});
  return AttnResMix::apply(score_weight, eps, at::TensorList(sources));
}

}  // namespace tandem::train
