// train/modules/kda_streams.cpp: what comes before the recurrence of KDA: short convolution and gate. The backward
// passes keep their input alone.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "train/modules/functional.h"
#include "train/modules/kda.h"
#include "train/modules/kernel_calls.h"

namespace tandem::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Where the row `back` rows earlier is of the same document, as numbers: [T, 1].
at::Tensor reaches(const at::Tensor& position, int64_t back, const at::Tensor& like) {
  return (position >= back).to(like.scalar_type()).unsqueeze(1);
}

// Before SiLU. x wide, taps [P, W] wide.
at::Tensor convolve(const at::Tensor& x, const at::Tensor& taps, const at::Tensor& position) {
  const int64_t width = taps.size(1), rows = x.size(0);
  at::Tensor sum = x * taps.select(1, width - 1);
  for (int64_t back = 1; back < std::min(width, rows); ++back) {
    const at::Tensor inside = reaches(position, back, x).narrow(0, back, rows - back);
    sum.narrow(0, back, rows - back).add_(x.narrow(0, 0, rows - back) * inside * taps.select(1, width - 1 - back));
  }
  return sum;
}

at::Tensor by_head(const at::Tensor& x, int64_t dim) { return x.reshape({x.size(0), x.size(1) / dim, dim}); }

at::Tensor conv_forward(const at::Tensor& x, const at::Tensor& taps, const at::Tensor& position,
                        const kernels::ShortConvShape& shape) {
  if (kernels::short_conv_takes(x, taps.size(1), shape)) return kernels::short_conv_forward(x, taps, position, shape);
  at::Tensor y = at::silu(convolve(widen(x), taps, position));
  if (shape.norm_dim > 0) y = l2_norm(by_head(y, shape.norm_dim), shape.norm_eps).reshape(y.sizes());
  return y.to(x.scalar_type());
}

std::pair<at::Tensor, at::Tensor> conv_backward(const at::Tensor& x, const at::Tensor& taps, const at::Tensor& position,
                                                const kernels::ShortConvShape& shape, const at::Tensor& gradient) {
  if (kernels::short_conv_takes(x, taps.size(1), shape)) {
    return kernels::short_conv_backward(x, taps, position, shape, gradient.contiguous());
  }
  const int64_t width = taps.size(1), rows = x.size(0);
  const at::Tensor wide = widen(x), sum = convolve(wide, taps, position), share = sum.sigmoid();
  at::Tensor d = widen(gradient);
  if (shape.norm_dim > 0) {
    const at::Tensor y = by_head(sum * share, shape.norm_dim);
    const at::Tensor scale = (y.square().sum(-1, true) + shape.norm_eps).rsqrt();
    const at::Tensor up = by_head(d, shape.norm_dim);
    d = (scale * (up - y * scale.square() * (up * y).sum(-1, true))).reshape(sum.sizes());
  }
  d = d * share * (1 + sum * (1 - share));
  at::Tensor dx = d * taps.select(1, width - 1), dtaps = at::zeros_like(taps);
  dtaps.select(1, width - 1).copy_((d * wide).sum(0));
  for (int64_t back = 1; back < std::min(width, rows); ++back) {
    const at::Tensor reached = (d * reaches(position, back, d)).narrow(0, back, rows - back);
    dx.narrow(0, 0, rows - back).add_(reached * taps.select(1, width - 1 - back));
    dtaps.select(1, width - 1 - back).copy_((reached * wide.narrow(0, 0, rows - back)).sum(0));
  }
  return {dx.to(x.scalar_type()), dtaps};
}

class ShortConv : public torch::autograd::Function<ShortConv> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& taps,
                            const at::Tensor& position, int64_t norm_dim, double norm_eps) {
    const at::Tensor dense = x.contiguous();
    ctx->save_for_backward({dense, taps, position});
    ctx->saved_data["norm_dim"] = norm_dim;
    ctx->saved_data["norm_eps"] = norm_eps;
    return conv_forward(dense, taps, position, {norm_dim, norm_eps});
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradient) {
    const variable_list saved = ctx->get_saved_variables();
    const auto [dx, dtaps] =
        conv_backward(saved[0], saved[1], saved[2],
                      {ctx->saved_data["norm_dim"].toInt(), ctx->saved_data["norm_eps"].toDouble()}, gradient[0]);
    return {dx, dtaps, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// max(z, 0) + log1p(exp(−|z|)): at::softplus turns linear above its threshold, which a gradient check can see.
at::Tensor exact_softplus(const at::Tensor& z) { return z.clamp_min(0) + (-z.abs()).exp().log1p(); }

at::Tensor gate_forward(const at::Tensor& z, const at::Tensor& a_log, const at::Tensor& dt_bias, double bound) {
  if (kernels::take_rows(z, 4)) return kernels::kda_gate_forward(z, a_log, dt_bias, bound);
  const at::Tensor rate = a_log.exp().unsqueeze(-1);
  const at::Tensor input = widen(z) + dt_bias.reshape({z.size(1), z.size(2)});
  return bound != 0 ? bound * (rate * input).sigmoid() : -rate * exact_softplus(input);
}

kernels::KdaGateGradients gate_backward(const at::Tensor& z, const at::Tensor& a_log, const at::Tensor& dt_bias,
                                        double bound, const at::Tensor& dg) {
  if (kernels::take_rows(z, 4)) return kernels::kda_gate_backward(z, a_log, dt_bias, bound, dg.contiguous());
  const at::Tensor rate = a_log.exp().unsqueeze(-1);
  const at::Tensor input = widen(z) + dt_bias.reshape({z.size(1), z.size(2)});
  at::Tensor dz, da;
  if (bound != 0) {
    const at::Tensor share = (rate * input).sigmoid();
    dz = dg * bound * share * (1 - share) * rate;
    da = dz * input;
  } else {
    dz = -dg * rate * input.sigmoid();
    da = -dg * rate * exact_softplus(input);
  }
  return {dz.to(z.scalar_type()), da.sum(at::IntArrayRef{0, 2}), dz.sum(0).reshape({-1})};
}

class KdaGate : public torch::autograd::Function<KdaGate> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& z, const at::Tensor& a_log,
                            const at::Tensor& dt_bias, double bound) {
    const at::Tensor dense = z.contiguous();
    ctx->save_for_backward({dense, a_log, dt_bias});
    ctx->saved_data["bound"] = bound;
    return gate_forward(dense, a_log, dt_bias, bound);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradient) {
    const variable_list saved = ctx->get_saved_variables();
    const auto found = gate_backward(saved[0], saved[1], saved[2], ctx->saved_data["bound"].toDouble(), gradient[0]);
    return {found.z, found.a_log, found.dt_bias, at::Tensor()};
  }
};

}  // namespace

at::Tensor short_conv(const at::Tensor& x, const at::Tensor& weight, const SequenceLayout& layout, int64_t norm_dim) {
  const at::Tensor taps = weight.reshape({-1, weight.size(-1)}).to(widen(x).scalar_type()).contiguous();
  return ShortConv::apply(x, taps, layout.position, norm_dim, kKdaL2NormEps);
}

at::Tensor kda_gate(const at::Tensor& z, const at::Tensor& a_log, const at::Tensor& dt_bias,
                    std::optional<double> lower_bound) {
  const at::ScalarType type = widen(z).scalar_type();
  return KdaGate::apply(z, a_log.to(type).contiguous(), dt_bias.to(type).contiguous(), lower_bound.value_or(0.0));
}

}  // namespace tandem::train
