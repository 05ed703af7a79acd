#include "train/modules/kernel_calls.h"

#include <bit>

#include "train/modules/kernel_launch.h"

namespace tandem::train::kernels {
namespace {

bool has_kernel_type(const at::Tensor& x) { return x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16; }

#if defined(TANDEM_HAS_TRAIN_CUDA)
bool on_device(const at::Tensor& x) { return x.is_cuda(); }
#elif defined(TANDEM_EMULATED_KERNELS)  // the kernels' source built for the CPU, for tests
bool on_device(const at::Tensor& x) { return x.is_cpu(); }
#else
bool on_device(const at::Tensor&) { return false; }
#endif

cuda::AttnResArgs attn_res_args(const std::vector<at::Tensor>& sources, const at::Tensor& score_weight, double eps) {
  cuda::AttnResArgs args;
  for (size_t i = 0; i < sources.size(); ++i) args.sources[i] = sources[i].data_ptr();
  args.num_sources = static_cast<int>(sources.size());
  args.rows = sources[0].size(0);
  args.dim = static_cast<int>(sources[0].size(1));
  args.type = element_of(sources[0]);
  args.score_weight = float_data(score_weight);
  args.eps = static_cast<float>(eps);
  return args;
}

cuda::RmsNormArgs rms_norm_args(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps) {
  cuda::RmsNormArgs args;
  args.x = x.data_ptr();
  args.gate = gate.defined() ? gate.data_ptr() : nullptr;
  args.weight = float_data(weight);
  args.dim = static_cast<int>(x.size(-1));
  args.rows = x.numel() / args.dim;
  args.x_stride = args.dim;
  args.type = element_of(x);
  args.eps = static_cast<float>(eps);
  return args;
}

cuda::ShortConvArgs short_conv_args(const at::Tensor& x, const at::Tensor& taps, const at::Tensor& position,
                                    const ShortConvShape& shape) {
  cuda::ShortConvArgs args;
  args.x = x.data_ptr();
  args.taps = float_data(taps);
  args.position = position.data_ptr<int64_t>();
  args.rows = x.size(0);
  args.channels = static_cast<int>(x.size(1));
  args.width = static_cast<int>(taps.size(1));
  args.norm_dim = static_cast<int>(shape.norm_dim);
  args.norm_eps = static_cast<float>(shape.norm_eps);
  args.type = element_of(x);
  return args;
}

cuda::KdaGateArgs kda_gate_args(const at::Tensor& z, const at::Tensor& a_log, const at::Tensor& dt_bias, double bound) {
  cuda::KdaGateArgs args;
  args.z = z.data_ptr();
  args.a_log = float_data(a_log);
  args.dt_bias = float_data(dt_bias);
  args.rows = z.size(0);
  args.channels = static_cast<int>(z.size(1) * z.size(2));
  args.head_dim = static_cast<int>(z.size(2));
  args.bounded = bound != 0;
  args.bound = static_cast<float>(bound);
  args.type = element_of(z);
  return args;
}

cuda::GatedActArgs gated_act_args(const at::Tensor& gate, const at::Tensor& up, double beta, double linear_beta) {
  cuda::GatedActArgs args;
  args.gate = gate.data_ptr();
  args.up = up.data_ptr();
  args.elements = gate.numel();
  args.beta = static_cast<float>(beta);
  args.linear_beta = static_cast<float>(linear_beta);
  args.type = element_of(gate);
  return args;
}

cuda::CrossEntropyArgs cross_entropy_args(const at::Tensor& logits, const at::Tensor& target) {
  cuda::CrossEntropyArgs args;
  args.logits = logits.data_ptr();
  args.target = target.data_ptr<int64_t>();
  args.rows = logits.size(0);
  args.vocab = logits.size(1);
  args.type = element_of(logits);
  return args;
}

}  // namespace

bool take(const at::Tensor& x) { return on_device(x) && has_kernel_type(x) && x.numel() > 0; }
bool take_rows(const at::Tensor& x, int64_t multiple) { return take(x) && x.size(-1) % multiple == 0; }
int64_t max_sources() { return cuda::kMaxSources; }
int64_t max_row_dim() { return cuda::kMaxRowDim; }

at::Tensor attn_res_forward(const std::vector<at::Tensor>& sources, const at::Tensor& score_weight, double eps) {
  const Place place(sources[0]);
  at::Tensor out = dense_like(sources[0]);
  check(cuda::attn_res_forward(attn_res_args(sources, score_weight, eps), out.data_ptr(), place.stream()),
        "attn_res_forward");
  return out;
}

AttnResGradients attn_res_backward(const std::vector<at::Tensor>& sources, const at::Tensor& score_weight, double eps,
                                   const at::Tensor& grad_out) {
  const Place place(sources[0]);
  const cuda::AttnResArgs args = attn_res_args(sources, score_weight, eps);
  AttnResGradients gradients;
  cuda::AttnResGradient out;
  out.out = grad_out.data_ptr();
  for (const at::Tensor& source : sources) {
    gradients.sources.push_back(dense_like(source));
    out.sources[gradients.sources.size() - 1] = gradients.sources.back().data_ptr();
  }
  out.blocks = cuda::partial_blocks(args.rows, args.dim);
  const at::Tensor partial = floats({out.blocks, args.dim}, grad_out);
  out.partial_weight = float_data(partial);
  check(cuda::attn_res_backward(args, out, place.stream()), "attn_res_backward");
  gradients.score_weight = partial.sum(0);
  return gradients;
}

at::Tensor rms_norm_forward(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps) {
  const Place place(x);
  at::Tensor y = dense_like(x);
  check(cuda::rms_norm_forward(rms_norm_args(x, gate, weight, eps), y.data_ptr(), place.stream()), "rms_norm_forward");
  return y;
}

RmsNormGradients rms_norm_backward(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps,
                                   const at::Tensor& grad_out) {
  const Place place(x);
  const cuda::RmsNormArgs args = rms_norm_args(x, gate, weight, eps);
  RmsNormGradients gradients;
  gradients.x = dense_like(x);
  if (gate.defined()) gradients.gate = dense_like(gate);
  cuda::RmsNormGradient out;
  out.y = grad_out.data_ptr();
  out.x = gradients.x.data_ptr();
  out.gate = gate.defined() ? gradients.gate.data_ptr() : nullptr;
  out.blocks = cuda::partial_blocks(args.rows, args.dim);
  const at::Tensor partial = floats({out.blocks, args.dim}, x);
  out.partial_weight = float_data(partial);
  check(cuda::rms_norm_backward(args, out, place.stream()), "rms_norm_backward");
  gradients.weight = partial.sum(0);
  return gradients;
}

bool short_conv_takes(const at::Tensor& x, int64_t width, const ShortConvShape& shape) {
  const int64_t lanes = shape.norm_dim / 4;
  const bool norm_fits =
      shape.norm_dim == 0 || (shape.norm_dim % 4 == 0 && lanes <= 32 &&
                              std::has_single_bit(static_cast<uint64_t>(lanes)) && x.size(1) % shape.norm_dim == 0);
  return take_rows(x, 4) && width <= cuda::kMaxConvWidth && norm_fits;
}

at::Tensor short_conv_forward(const at::Tensor& x, const at::Tensor& taps, const at::Tensor& position,
                              const ShortConvShape& shape) {
  const Place place(x);
  at::Tensor y = dense_like(x);
  check(cuda::short_conv_forward(short_conv_args(x, taps, position, shape), y.data_ptr(), place.stream()),
        "short_conv_forward");
  return y;
}

std::pair<at::Tensor, at::Tensor> short_conv_backward(const at::Tensor& x, const at::Tensor& taps,
                                                      const at::Tensor& position, const ShortConvShape& shape,
                                                      const at::Tensor& grad_out) {
  const Place place(x);
  at::Tensor dx = dense_like(x);
  const at::Tensor partial = floats({cuda::short_conv_tiles(x.size(0)), taps.size(0), taps.size(1)}, x);
  cuda::ShortConvGradient out;
  out.y = grad_out.data_ptr();
  out.x = dx.data_ptr();
  out.partial_taps = float_data(partial);
  check(cuda::short_conv_backward(short_conv_args(x, taps, position, shape), out, place.stream()),
        "short_conv_backward");
  return {dx, partial.sum(0)};
}

at::Tensor kda_gate_forward(const at::Tensor& z, const at::Tensor& a_log, const at::Tensor& dt_bias, double bound) {
  const Place place(z);
  at::Tensor g = floats(z.sizes(), z);
  check(cuda::kda_gate_forward(kda_gate_args(z, a_log, dt_bias, bound), float_data(g), place.stream()),
        "kda_gate_forward");
  return g;
}

KdaGateGradients kda_gate_backward(const at::Tensor& z, const at::Tensor& a_log, const at::Tensor& dt_bias,
                                   double bound, const at::Tensor& grad_g) {
  const Place place(z);
  KdaGateGradients gradients;
  gradients.z = dense_like(z);
  const int64_t tiles = cuda::short_conv_tiles(z.size(0));
  const at::Tensor partial_a = floats({tiles, z.size(1), z.size(2)}, z), partial_bias = at::empty_like(partial_a);
  cuda::KdaGateGradient out;
  out.g = float_data(grad_g);
  out.z = gradients.z.data_ptr();
  out.partial_a = float_data(partial_a);
  out.partial_bias = float_data(partial_bias);
  check(cuda::kda_gate_backward(kda_gate_args(z, a_log, dt_bias, bound), out, place.stream()), "kda_gate_backward");
  gradients.a_log = partial_a.sum(at::IntArrayRef{0, 2});
  gradients.dt_bias = partial_bias.sum(0).reshape({-1});
  return gradients;
}

at::Tensor gated_act_forward(const at::Tensor& gate, const at::Tensor& up, double beta, double linear_beta) {
  const Place place(gate);
  at::Tensor out = dense_like(gate);
  check(cuda::gated_act_forward(gated_act_args(gate, up, beta, linear_beta), out.data_ptr(), place.stream()),
        "gated_act_forward");
  return out;
}

std::pair<at::Tensor, at::Tensor> gated_act_backward(const at::Tensor& gate, const at::Tensor& up, double beta,
                                                     double linear_beta, const at::Tensor& grad_out) {
  const Place place(gate);
  at::Tensor grad_gate = dense_like(gate), grad_up = dense_like(up);
  check(cuda::gated_act_backward(gated_act_args(gate, up, beta, linear_beta), grad_out.data_ptr(), grad_gate.data_ptr(),
                                 grad_up.data_ptr(), place.stream()),
        "gated_act_backward");
  return {grad_gate, grad_up};
}

bool gather_takes(const at::Tensor& x) {
  return take(x) && x.numel() / x.size(0) * static_cast<int64_t>(x.element_size()) % 16 == 0;
}

at::Tensor gather(const at::Tensor& x, const at::Tensor& rows) {
  const Place place(x);
  std::vector<int64_t> shape = x.sizes().vec();
  shape[0] = rows.size(0);
  at::Tensor out = at::empty(shape, x.options().requires_grad(false));
  if (rows.size(0) == 0) return out;
  const int64_t row_bytes = x.numel() / x.size(0) * static_cast<int64_t>(x.element_size());
  check(cuda::gather_rows(x.data_ptr(), x.size(0), rows.data_ptr<int64_t>(), rows.size(0), row_bytes, out.data_ptr(),
                          place.stream()),
        "gather_rows");
  return out;
}

std::pair<at::Tensor, at::Tensor> cross_entropy_forward(const at::Tensor& logits, const at::Tensor& target) {
  const Place place(logits);
  at::Tensor loss = floats({logits.size(0)}, logits), log_sum = at::empty_like(loss);
  check(cuda::cross_entropy_forward(cross_entropy_args(logits, target), float_data(loss), float_data(log_sum),
                                    place.stream()),
        "cross_entropy_forward");
  return {loss, log_sum};
}

at::Tensor cross_entropy_backward(const at::Tensor& logits, const at::Tensor& target, const at::Tensor& log_sum,
                                  const at::Tensor& row_weight) {
  const Place place(logits);
  at::Tensor gradient = dense_like(logits);
  check(cuda::cross_entropy_backward(cross_entropy_args(logits, target), float_data(log_sum), float_data(row_weight),
                                     gradient.data_ptr(), place.stream()),
        "cross_entropy_backward");
  return gradient;
}

}  // namespace tandem::train::kernels
