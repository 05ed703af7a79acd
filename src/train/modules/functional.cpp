#include "train/modules/functional.h"

#include <ATen/ATen.h>

namespace tandem::train {
namespace {

at::Tensor inverse_rms(const at::Tensor& x, double eps) { return (x.square().mean(-1, true) + eps).rsqrt(); }

}  // namespace

at::Tensor widen(const at::Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  return type == at::kBFloat16 || type == at::kHalf ? x.to(at::kFloat) : x;
}

at::Tensor project(const at::Tensor& x, const at::Tensor& weight) {
  return at::matmul(x, weight.to(x.scalar_type()).t());
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = widen(x);
  return (wide * inverse_rms(wide, eps) * widen(weight)).to(x.scalar_type());
}

at::Tensor rms_norm_gated(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps) {
  const at::Tensor wide = widen(x);
  return (wide * inverse_rms(wide, eps) * widen(weight) * widen(gate).sigmoid()).to(x.scalar_type());
}

at::Tensor l2_norm(const at::Tensor& x, double eps) {
  const at::Tensor wide = widen(x);
  return (wide * (wide.square().sum(-1, true) + eps).rsqrt()).to(x.scalar_type());
}

at::Tensor attn_res_mix(const std::vector<at::Tensor>& sources, const at::Tensor& norm, const at::Tensor& proj,
                        double eps) {
  const at::Tensor score_weight = widen(norm) * widen(proj).reshape({-1});
  std::vector<at::Tensor> scores;
  for (const at::Tensor& source : sources) {
    const at::Tensor wide = widen(source);
    scores.push_back(at::matmul(wide, score_weight) * inverse_rms(wide, eps).squeeze(-1));
  }
  const std::vector<at::Tensor> share = at::stack(scores).softmax(0).unsqueeze(-1).unbind(0);
  at::Tensor mixed = share[0] * widen(sources[0]);
  for (size_t i = 1; i < sources.size(); ++i) mixed = mixed + share[i] * widen(sources[i]);
  return mixed.to(sources[0].scalar_type());
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, const at::Tensor& mask) {
  const at::Tensor wide = widen(logits);
  const at::Tensor chosen = wide.gather(1, target.unsqueeze(1)).squeeze(1);
  const at::Tensor loss = wide.logsumexp(1) - chosen;
  const at::Tensor weight = mask.to(loss.scalar_type());
  const at::Tensor total = weight.sum();
  // where(): a row that does not count may hold a loss that is not finite.
  const at::Tensor counted = at::where(weight > 0, loss * weight, at::zeros_like(loss)).sum();
  return counted / at::where(total > 0, total, at::ones_like(total));
}

}  // namespace tandem::train
