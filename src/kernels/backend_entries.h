// kernels/backend_entries.h: the entry points of every backend, `tandem::<backend>::<operator>`.
//
//   ref is the equation in plain loops. portable, neon, avx2 and avx512 are one algorithm (`<op>_simd.inl`) written
//   over kernels/simd/ and built once for each instruction set. router_select has one implementation, in ref. Entries
//   assume arguments that the operator's public function has validated.
#pragma once

#include "kernels/kernel_table.h"

#define TANDEM_DECLARE_BACKEND(backend)                               \
  namespace backend {                                                 \
  void linear(const ExecContext&, const LinearArgs&);                 \
  void rms_norm(const ExecContext&, const RmsNormArgs&);              \
  void rms_norm_gated(const ExecContext&, const RmsNormGatedArgs&);   \
  void l2_norm(const ExecContext&, const L2NormArgs&);                \
  void attn_res_mix(const ExecContext&, const AttnResMixArgs&);       \
  void gated_act(const ExecContext&, const GatedActArgs&);            \
  void moe_experts(const ExecContext&, const MoeExpertsArgs&);        \
  void short_conv(const ExecContext&, const ShortConvArgs&);          \
  void kda_gate(const ExecContext&, const KdaGateArgs&);              \
  void kda_recurrent(const ExecContext&, const KdaArgs&);             \
  void kda_chunked(const ExecContext&, const KdaArgs&);               \
  void kda_decode(const ExecContext&, const KdaDecodeArgs&);          \
  void mla_expanded(const ExecContext&, const MlaArgs&);              \
  void mla_absorbed(const ExecContext&, const MlaArgs&);              \
  void embedding(const ExecContext&, const EmbeddingArgs&);           \
  void add(const ExecContext&, const AddArgs&);                       \
  void sigmoid_gate(const ExecContext&, const SigmoidGateArgs&);      \
  void sigmoid_inplace(const ExecContext&, const MatrixView<float>&); \
  void round_to_bf16(const ExecContext&, const MatrixView<float>&);   \
  }

namespace tandem {
TANDEM_DECLARE_BACKEND(ref)
TANDEM_DECLARE_BACKEND(portable)
TANDEM_DECLARE_BACKEND(neon)
TANDEM_DECLARE_BACKEND(avx2)
TANDEM_DECLARE_BACKEND(avx512)

namespace amx {  // matrices, on AMX tiles; all else is avx512's
void linear(const ExecContext&, const LinearArgs&);
void linear_prefill(const ExecContext&, const LinearArgs&);
void moe_experts_prefill(const ExecContext&, const MoeExpertsArgs&);
}  // namespace amx

namespace ref {
void router_select(const ExecContext&, const RouterSelectArgs&);
}
}  // namespace tandem

#undef TANDEM_DECLARE_BACKEND
