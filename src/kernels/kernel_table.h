// kernels/kernel_table.h: which implementation of every operator this process runs, chosen once at load.
//
//   make_kernel_table starts from the reference and lays the best supported backend over it. The operators' public
//   functions validate their arguments and then call through the table; a backend never validates.
//   Threading: immutable after creation; shared by all.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/activation/gated_act.h"
#include "kernels/attn_res/attn_res.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/kda/kda.h"
#include "kernels/kda/kda_decode.h"
#include "kernels/kda/short_conv.h"
#include "kernels/linear/linear.h"
#include "kernels/mla/mla.h"
#include "kernels/moe/experts.h"
#include "kernels/moe/router.h"
#include "kernels/norm/norm.h"

namespace tandem {

enum class KernelBackend { kRef, kPortable, kNeon, kAvx2, kAvx512, kAmx };
std::string_view kernel_backend_name(KernelBackend backend);  // "ref", "portable", "neon", …

struct CpuFeatures {
  bool avx2 = false;    // AVX2 + FMA + F16C + BMI2
  bool avx512 = false;  // AVX-512 F, BW, DQ, VL
  bool amx = false;     // AMX tiles of bf16 and int8 and AVX-512 BF16, and the system lets this process use them
  bool neon = false;    // AArch64, all of which have it
};
// Asks the system for the use of AMX: before threads are started.
CpuFeatures detect_cpu_features();

// Backends that this CPU runs, slowest first; always starts with kRef, kPortable.
std::vector<KernelBackend> available_backends(const CpuFeatures& features);

struct KernelTable {
  KernelBackend backend = KernelBackend::kRef;
  void (*linear)(const ExecContext&, const LinearArgs&) = nullptr;
  void (*linear_prefill)(const ExecContext&, const LinearArgs&) = nullptr;  // null: none of its own
  void (*rms_norm)(const ExecContext&, const RmsNormArgs&) = nullptr;
  void (*rms_norm_gated)(const ExecContext&, const RmsNormGatedArgs&) = nullptr;
  void (*l2_norm)(const ExecContext&, const L2NormArgs&) = nullptr;
  void (*attn_res_mix)(const ExecContext&, const AttnResMixArgs&) = nullptr;
  void (*gated_act)(const ExecContext&, const GatedActArgs&) = nullptr;
  void (*router_select)(const ExecContext&, const RouterSelectArgs&) = nullptr;
  void (*moe_experts)(const ExecContext&, const MoeExpertsArgs&) = nullptr;
  void (*moe_experts_prefill)(const ExecContext&, const MoeExpertsArgs&) = nullptr;  // likewise
  void (*short_conv)(const ExecContext&, const ShortConvArgs&) = nullptr;
  void (*kda_gate)(const ExecContext&, const KdaGateArgs&) = nullptr;
  void (*kda_recurrent)(const ExecContext&, const KdaArgs&) = nullptr;
  void (*kda_chunked)(const ExecContext&, const KdaArgs&) = nullptr;
  void (*kda_decode)(const ExecContext&, const KdaDecodeArgs&) = nullptr;
  void (*mla_expanded)(const ExecContext&, const MlaArgs&) = nullptr;
  void (*mla_absorbed)(const ExecContext&, const MlaArgs&) = nullptr;
  void (*embedding)(const ExecContext&, const EmbeddingArgs&) = nullptr;
  void (*add)(const ExecContext&, const AddArgs&) = nullptr;
  void (*sigmoid_gate)(const ExecContext&, const SigmoidGateArgs&) = nullptr;
  void (*sigmoid_inplace)(const ExecContext&, const MatrixView<float>&) = nullptr;
  void (*round_to_bf16)(const ExecContext&, const MatrixView<float>&) = nullptr;

  // One line for the log: the backend, and the operators that run in another: "kernels: avx512, router_select=ref".
  std::string describe() const;
};

// `requested`: nullopt = the best this CPU runs. kUnsupported when the CPU lacks the requested one.
Result<KernelTable> make_kernel_table(const CpuFeatures& features, std::optional<KernelBackend> requested);

// "ref|portable|neon|avx2|avx512|amx|auto"; "auto" is nullopt inside the Result.
Result<std::optional<KernelBackend>> parse_kernel_backend(std::string_view name);

}  // namespace tandem
