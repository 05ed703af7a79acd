// kernels/activation/gated_act.h: the gated activations of every MLP in the model.
//
//   SiTU-GLU   out = β1·tanh(gate/β1)·σ(gate) · β2·tanh(up/β2)      the sigmoid takes the UNCAPPED gate; |out| ≤ β1·β2
//              without β2 the second factor is `up`
//   SwiGLU     out = gate·σ(gate) · up
//   Source: K3 technical report; released modelling code (model.md §3.9).
//
// Shapes     gate, up, out [T, I], row stride free, last axis contiguous.   Aliasing: out may be gate or up.
// Numerics   f32, elementwise.   Errors: kInvalidArgument on shape mismatch or β ≤ 0.
#pragma once

#include <optional>
#include <string_view>

#include "kernels/exec_context.h"
#include "tandem/status.h"
#include "tensor/view.h"

namespace tandem {

enum class GatedAct { kSitu, kSwiGlu };

struct GatedActParams {
  GatedAct kind = GatedAct::kSwiGlu;
  float beta = 1.f;                  // β1
  std::optional<float> linear_beta;  // β2
};

// kInvalidArgument, in the name of `op`, when a β of SiTU is not positive.
Status check_gated_act_params(std::string_view op, const GatedActParams& params);

struct GatedActArgs {
  MatrixView<const float> gate;
  MatrixView<const float> up;
  GatedActParams params;
  MatrixView<float> out;
};
Status gated_act(const ExecContext& ctx, const GatedActArgs& args);

}  // namespace tandem
