// train/modules/kda_chunk.h: Kimi Delta Attention on chunks, as batched matrix products around a short recurrence, with
// a backward pass written by hand.
//
//   Per head and chunk of C rows, G the running sum of g inside the chunk, S the state before it, S' behind:
//     Q = s exp(G) q     K = exp(G) k     E = exp(G_C − G) k     D = Diag(exp(G_C))
//     P_ij = Σ_c k_i k_j exp(G_i − G_j), j < i      M_ij = s Σ_c q_i k_j exp(G_i − G_j), j ≤ i
//     Y = (I + Diag(β) P)⁻¹ Diag(β)     u = Y v     w = Y K     U = u − w S
//     o = Q S + M U      S' = D S + Eᵀ U
//   Backward, from do and the gradient behind the last chunk:
//     dU = Mᵀ do + E dS'        dS = D dS' + Qᵀ do − wᵀ dU        (chunk by chunk, from the last)
//     B = Yᵀ dU = β ⊙ dR        dv = B       dK = −B Sᵀ      dQ = do Sᵀ     dE = U dS'ᵀ     dD = Σ_v S ⊙ dS'
//     dM = do Uᵀ       dP = −B Uᵀ below the diagonal      dβ_i = ⟨B_i, U_i⟩ / β_i²
//   then through the exponentials to q, k and g. The last line needs β > 0, as a sigmoid gives it.
//   Kept for the backward pass: the inputs and one state a chunk. Everything else is made once more, the products of
//   the backward pass for a group of chunks at a time.
//   Exponentials: a block of 2n rows is two blocks of n and the product of the upper rows, decayed from the middle,
//   with the lower rows, decayed to the middle. Both factors are at most 1, so nothing overflows for any gate. With a
//   bounded gate (g ≥ −5) the recursion starts at 16 rows, where factors around the middle row stay within exp(±40);
//   else at 1. Numerics   g, its sums, β, P, M and S have the type of g. On CUDA with bfloat16 q, k, v the products
//   multiply in
//              TF32 (kKdaTf32); with float inputs they are float throughout.
//   Source: Kimi Linear report (chunk form, WY representation); model.md §4; systems.md §9.4.
#pragma once

#include <ATen/core/Tensor.h>

#include "train/modules/sequence_layout.h"

namespace tandem::train {

inline constexpr bool kKdaTf32 = true;

struct KdaInputs {
  at::Tensor q, k;           // [T, H, K] L2-normalised
  at::Tensor v;              // [T, H, V]
  at::Tensor g;              // [T, H, K] log decay, float or double; the computation has its type
  at::Tensor beta;           // [T, H] after the sigmoid
  double scale = 1.0;        // of q
  bool bounded = false;      // g ≥ −5 everywhere
  at::Tensor initial_state;  // [N, H, K, V], or undefined: zeros
};
struct KdaOutputs {
  at::Tensor out;    // [T, H, V]
  at::Tensor state;  // [N, H, K, V] after each document
};
KdaOutputs kda_chunked(const KdaInputs& inputs, const SequenceLayout& layout);

// (I + L)⁻¹ of the part of `lower` […, C, C] strictly below the diagonal; C a power of two. By halves: the lower left
// of an inverse is −X22 L21 X11.
at::Tensor unit_lower_inverse(const at::Tensor& lower);

}  // namespace tandem::train
