// kernels/activation/gated_act_rows.h: the gated activation of one register, shared by gated_act and moe_experts.
#pragma once

#include "kernels/activation/gated_act.h"
#include "kernels/simd/vec_math.h"

namespace tandem::simd {
namespace {

// GatedActParams unpacked: std::optional's members are ordinary inline functions.
struct ActConstants {
  Vec beta, inv_beta, linear_beta, inv_linear_beta;
  bool situ;
  bool caps_up;
};

TANDEM_INLINE ActConstants act_constants(const GatedActParams& params) {
  const bool caps_up = params.linear_beta.has_value();
  const float linear_beta = caps_up ? *params.linear_beta : 1.f;
  return {broadcast(params.beta),       broadcast(1.f / params.beta),   broadcast(linear_beta),
          broadcast(1.f / linear_beta), params.kind == GatedAct::kSitu, caps_up};
}

TANDEM_INLINE Vec gated_activation(const ActConstants& c, Vec gate, Vec up) {
  const Vec s = sigmoid(gate);
  if (!c.situ) return gate * s * up;
  const Vec capped_gate = c.beta * tanh(gate * c.inv_beta);
  const Vec capped_up = c.caps_up ? c.linear_beta * tanh(up * c.inv_linear_beta) : up;
  return capped_gate * s * capped_up;
}

}  // namespace
}  // namespace tandem::simd
