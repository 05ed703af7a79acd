// kernels/elementwise/elementwise.h: the small row operators between the large ones.
//
// Shapes     matrices [T, D], row stride free, last axis contiguous.   Aliasing: out may be an input.
// Numerics   f32, elementwise; rows are independent.
// Errors     kInvalidArgument on shape mismatch or a token id outside the table.
#pragma once

#include <span>

#include "base/ids.h"
#include "kernels/exec_context.h"
#include "tandem/status.h"
#include "tensor/view.h"
#include "tensor/weight_view.h"

namespace tandem {

// out[t] = table[tokens[t]], widened exactly.
struct EmbeddingArgs {
  WeightView table;  // [vocab, D]
  std::span<const TokenId> tokens;
  MatrixView<float> out;
};
Status embedding(const ExecContext& ctx, const EmbeddingArgs& args);

// out = a + b
struct AddArgs {
  MatrixView<const float> a, b;
  MatrixView<float> out;
};
Status add(const ExecContext& ctx, const AddArgs& args);

// out = x ⊙ σ(gate): the output gate of Gated MLA.
struct SigmoidGateArgs {
  MatrixView<const float> x, gate;
  MatrixView<float> out;
};
Status sigmoid_gate(const ExecContext& ctx, const SigmoidGateArgs& args);

// x ← σ(x): the KDA write strength β.
Status sigmoid_inplace(const ExecContext& ctx, const MatrixView<float>& x);

// x ← rne_bf16(x) widened back: the rounding points of bf16 activations.
Status round_to_bf16(const ExecContext& ctx, const MatrixView<float>& x);

}  // namespace tandem
