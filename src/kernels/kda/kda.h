// kernels/kda/kda.h: Kimi Delta Attention: its decay gate and its recurrence, token by token or in chunks.
//
//   gate        z' = z + dt_bias;  A_h = exp(A_log[h])
//               g = lower_bound · σ(A_h · z')        with a lower bound (K3: −5; a different function, not a clamp)
//               g = −A_h · softplus(z')              without
//   recurrence  S ← Diag(exp(g_t)) S                 decay first
//               S ← S + k_t ( β_t (v_t − Sᵀk_t) )ᵀ   read with the decayed state
//               o_t = scale · Sᵀ q_t                 read the updated state
//   Source: Kimi Linear report, KDA recurrence; released modelling code, recurrent form (model.md §3.4, §4).
//
//   kda_recurrent walks the tokens one by one. kda_chunked takes kKdaChunk tokens at a time:
//     (I + L) U = R,  L_ij = β_i Σ_c k_i k_j Π_{m=j+1..i} exp(g_m) (j < i),  R_i = β_i (v_i − (Γ_i ⊙ k_i)ᵀ S0)
//     o_i = scale [ (Γ_i ⊙ q_i)ᵀ S0 + Σ_{j≤i} M_ij U_j ],  S = Diag(Γ_C) S0 + Σ_i (Γ_C/Γ_i ⊙ k_i) U_iᵀ
//   Decays between two tokens are products of factors in (0, 1], never a quotient or exp of a difference, and the
//   triangular system is solved by substitution: no regime overflows or cancels (decay at the bound, decay near 1,
//   parallel or repeated keys). The chunk grid starts at the first row of a segment.
//
// Shapes     q, k, g [T, H, K]; v, out [T, H, V]; beta [T, H]; a segment's state [H, K, V] contiguous f32. Row strides
//            free, last axis contiguous. q and k arrive L2-normalised, g ≤ 0 is a natural logarithm, beta is after the
//            sigmoid.
// Aliasing   state is read and written in place; out may be v; nothing else overlaps. Segments have distinct states.
// Numerics   f32. A segment's result does not depend on the others. kda_recurrent is bitwise the same for any split of
//            a sequence into calls; kda_chunked is so for splits at multiples of kKdaChunk, else it agrees within
//            rounding. A one-row segment of kda_chunked takes the recurrent step.
// Errors     kInvalidArgument on shape or stride mismatch. A segment without rows is skipped and may have no state.
#pragma once

#include <optional>
#include <span>

#include "kernels/exec_context.h"
#include "tandem/status.h"
#include "tensor/view.h"

namespace tandem {

inline constexpr int64_t kKdaChunk = 16;

struct KdaGateArgs {
  TensorView<const float, 3> z;      // [T, H, K]
  VectorView<const float> a_log;     // [H] (a padded tensor's first H entries)
  VectorView<const float> dt_bias;   // [H * K]
  std::optional<float> lower_bound;  // in [−5, 0)
  TensorView<float, 3> g;            // [T, H, K]; may be z
};
Status kda_gate(const ExecContext& ctx, const KdaGateArgs& args);

struct KdaSegment {
  int64_t row_begin = 0;
  int64_t num_rows = 0;
  float* state = nullptr;  // [H, K, V]
};

struct KdaArgs {
  TensorView<const float, 3> q, k;  // [T, H, K]
  TensorView<const float, 3> v;     // [T, H, V]
  TensorView<const float, 3> g;     // [T, H, K]
  MatrixView<const float> beta;     // [T, H]
  float scale = 0.f;                // usually 1/sqrt(K)
  std::span<const KdaSegment> segments;
  TensorView<float, 3> out;  // [T, H, V]
};
Status kda_recurrent(const ExecContext& ctx, const KdaArgs& args);
Status kda_chunked(const ExecContext& ctx, const KdaArgs& args);

}  // namespace tandem
