#include "train/modules/kda.h"

#include <ATen/ATen.h>

#include <cmath>

#include "train/modules/functional.h"

namespace tandem::train {

at::Tensor kda_layer(const ModelConfig& config, const LayerParameters& weights, const at::Tensor& x,
                     const SequenceLayout& layout) {
  using Role = TensorRole;
  const auto heads = [&](const at::Tensor& rows) {
    return rows.reshape({x.size(0), config.kda_num_heads, config.kda_head_dim});
  };
  const auto stream = [&](Role proj, Role conv, int64_t norm_dim) {
    return heads(short_conv(project(x, weights[proj]), weights[conv], layout, norm_dim));
  };
  KdaInputs inputs;
  inputs.q = stream(Role::kKdaQProj, Role::kKdaQConv, config.kda_head_dim);
  inputs.k = stream(Role::kKdaKProj, Role::kKdaKConv, config.kda_head_dim);
  inputs.v = stream(Role::kKdaVProj, Role::kKdaVConv, 0);
  inputs.g = kda_gate(heads(project(project(x, weights[Role::kKdaFAProj]), weights[Role::kKdaFBProj])),
                      weights[Role::kKdaALog], weights[Role::kKdaDtBias], config.gate_lower_bound);
  inputs.beta = widen(project(x, weights[Role::kKdaBProj])).sigmoid();
  inputs.scale = 1.0 / std::sqrt(static_cast<double>(config.kda_head_dim));
  inputs.bounded = config.gate_lower_bound.has_value();
  const at::Tensor out = kda_chunked(inputs, layout).out.to(x.scalar_type());

  const at::Tensor gate = config.use_full_rank_gate
                              ? project(x, weights[Role::kKdaGProj])
                              : project(project(x, weights[Role::kKdaGAProj]), weights[Role::kKdaGBProj]);
  const at::Tensor gated = rms_norm_gated(out, heads(gate), weights[Role::kKdaONorm], config.rms_norm_eps);
  return project(gated.reshape({x.size(0), config.kda_projection_size()}), weights[Role::kKdaOProj]);
}

}  // namespace tandem::train
