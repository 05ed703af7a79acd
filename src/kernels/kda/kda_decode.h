// kernels/kda/kda_decode.h: a KDA layer between its projections for the few rows of a decode step, fused: one pass over
// a head's state instead of six operators over every row.
//
//   By definition, bit for bit in every backend, the sequence of operators
//     q, k, v ← short_conv          each from its own columns of the history
//     q, k    ← l2_norm             over a head
//     β       ← σ(beta)
//     g       ← kda_gate(z)
//     o       ← kda_recurrent(q, k, v, g, β)
//     out     ← rms_norm_gated(o, gate)   over a head
//   Source: Kimi Linear report, KDA layer; systems.md §7.2.
//
// Shapes     q, k, z [T, H·K]; v, gate, out [T, H·V]; beta [T, H]; conv_weight [H(2K + V), W], rows of q, of k, of v; a
//            segment's history [W−1, H(2K + V)] in the same order, oldest first, and its state [H, K, V]. Row strides
//            free, last axis contiguous.
// Aliasing   history and state are read and written in place; out overlaps nothing.
// Numerics   f32. A segment's result does not depend on the others.
// Errors     kInvalidArgument on shape mismatch, an ε that is not > 0, or a bound outside [−5, 0). A segment without
// rows
//            is skipped.
#pragma once

#include <optional>
#include <span>

#include "kernels/exec_context.h"
#include "tandem/status.h"
#include "tensor/view.h"

namespace tandem {

struct KdaDecodeSegment {
  int64_t row_begin = 0;
  int64_t num_rows = 0;
  float* state = nullptr;
  MatrixView<float> history;  // not read when W = 1
};

struct KdaDecodeArgs {
  int64_t heads = 0;
  MatrixView<const float> q, k, v;      // projections
  MatrixView<const float> z;            // decay-gate input
  MatrixView<const float> beta;         // logits
  MatrixView<const float> gate;         // output gate, before the sigmoid
  MatrixView<const float> conv_weight;  // [H(2K + V), W]
  VectorView<const float> a_log;        // [H]
  VectorView<const float> dt_bias;      // [H·K]
  std::optional<float> lower_bound;
  float l2_eps = 1e-6f;
  VectorView<const float> norm_weight;  // [V]
  float norm_eps = 1e-6f;
  float scale = 0.f;
  std::span<const KdaDecodeSegment> segments;
  MatrixView<float> out;
};
Status kda_decode(const ExecContext& ctx, const KdaDecodeArgs& args);

}  // namespace tandem
