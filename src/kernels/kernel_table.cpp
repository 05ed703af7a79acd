#include "kernels/kernel_table.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/cat.h"
#include "kernels/backend_entries.h"

// Operators whose entries exist in every backend; router_select is the one that has only a reference.
#define TANDEM_FOR_EACH_OPERATOR(visit)                                                                              \
  visit(linear) visit(rms_norm) visit(rms_norm_gated) visit(l2_norm) visit(attn_res_mix) visit(gated_act)            \
      visit(moe_experts) visit(short_conv) visit(kda_gate) visit(kda_recurrent) visit(kda_chunked) visit(kda_decode) \
          visit(mla_expanded) visit(mla_absorbed) visit(embedding) visit(add) visit(sigmoid_gate)                    \
              visit(sigmoid_inplace) visit(round_to_bf16)

namespace tandem {
namespace {

#define TANDEM_TAKE_ENTRY(op) table.op = &TANDEM_BACKEND::op;

void lay_ref(KernelTable& table) {
#define TANDEM_BACKEND ref
  TANDEM_FOR_EACH_OPERATOR(TANDEM_TAKE_ENTRY)
  table.router_select = &ref::router_select;
#undef TANDEM_BACKEND
}

void lay_portable(KernelTable& table) {
#define TANDEM_BACKEND portable
  TANDEM_FOR_EACH_OPERATOR(TANDEM_TAKE_ENTRY)
#undef TANDEM_BACKEND
}

#if defined(__aarch64__)
void lay_neon(KernelTable& table) {
#define TANDEM_BACKEND neon
  TANDEM_FOR_EACH_OPERATOR(TANDEM_TAKE_ENTRY)
#undef TANDEM_BACKEND
}
#endif

#if defined(__x86_64__)
void lay_avx2(KernelTable& table) {
#define TANDEM_BACKEND avx2
  TANDEM_FOR_EACH_OPERATOR(TANDEM_TAKE_ENTRY)
#undef TANDEM_BACKEND
}

void lay_avx512(KernelTable& table) {
#define TANDEM_BACKEND avx512
  TANDEM_FOR_EACH_OPERATOR(TANDEM_TAKE_ENTRY)
#undef TANDEM_BACKEND
}
#endif

#if defined(__x86_64__)
// AVX-512 with tiles for the rows of prompts.
void lay_amx(KernelTable& table) {
  lay_avx512(table);
  table.linear = &amx::linear;
  table.linear_prefill = &amx::linear_prefill;
  table.moe_experts_prefill = &amx::moe_experts_prefill;
}
#endif

KernelTable table_of(KernelBackend backend) {
  KernelTable table;
  table.backend = backend;
  lay_ref(table);
  switch (backend) {
    case KernelBackend::kRef: break;
    case KernelBackend::kPortable: lay_portable(table); break;
#if defined(__aarch64__)
    case KernelBackend::kNeon: lay_neon(table); break;
#else
    case KernelBackend::kNeon: break;  // never available: detect_cpu_features() reports none
#endif
#if defined(__x86_64__)
    case KernelBackend::kAvx2: lay_avx2(table); break;
    case KernelBackend::kAvx512: lay_avx512(table); break;
    case KernelBackend::kAmx: lay_amx(table); break;
#else
    case KernelBackend::kAvx2:
    case KernelBackend::kAvx512:
    case KernelBackend::kAmx: break;  // likewise
#endif
  }
  return table;
}

}  // namespace

#if defined(__x86_64__)
namespace {

// Tiles hold 8 KiB of state a thread, which Linux saves only for processes that asked.
bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  const bool has_tiles = (d >> 24 & 1u) != 0 && (d >> 22 & 1u) != 0 && (d >> 25 & 1u) != 0;  // AMX-TILE, -BF16, -INT8
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0) return false;
  const bool has_bf16 = (a >> 5 & 1u) != 0;
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return has_tiles && has_bf16 && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace
#endif

std::string_view kernel_backend_name(KernelBackend backend) {
  switch (backend) {
    case KernelBackend::kRef: return "ref";
    case KernelBackend::kPortable: return "portable";
    case KernelBackend::kNeon: return "neon";
    case KernelBackend::kAvx2: return "avx2";
    case KernelBackend::kAvx512: return "avx512";
    case KernelBackend::kAmx: return "amx";
  }
  return "?";
}

CpuFeatures detect_cpu_features() {
  CpuFeatures features;
#if defined(__x86_64__)
  // The builtins also ask the operating system (XGETBV) whether it saves the wide registers.
  __builtin_cpu_init();
  features.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
                  __builtin_cpu_supports("bmi2");
  features.avx512 = features.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  features.amx = features.avx512 && has_amx();
#elif defined(__aarch64__)
  features.neon = true;
#endif
  return features;
}

std::vector<KernelBackend> available_backends(const CpuFeatures& features) {
  std::vector<KernelBackend> backends = {KernelBackend::kRef, KernelBackend::kPortable};
  if (features.neon) backends.push_back(KernelBackend::kNeon);
  if (features.avx2) backends.push_back(KernelBackend::kAvx2);
  if (features.avx512) backends.push_back(KernelBackend::kAvx512);
  if (features.amx) backends.push_back(KernelBackend::kAmx);
  return backends;
}

Result<KernelTable> make_kernel_table(const CpuFeatures& features, std::optional<KernelBackend> requested) {
  const std::vector<KernelBackend> available = available_backends(features);
  if (!requested.has_value()) return table_of(available.back());
  std::string names;
  for (const KernelBackend backend : available) {
    if (backend == *requested) return table_of(backend);
    names += cat(names.empty() ? "" : ", ", kernel_backend_name(backend));
  }
  return Status::unsupported(
      cat("kernel backend ", kernel_backend_name(*requested), ": this CPU lacks its instructions; it runs ", names));
}

Result<std::optional<KernelBackend>> parse_kernel_backend(std::string_view name) {
  if (name == "auto") return std::optional<KernelBackend>{};
  for (const KernelBackend backend : {KernelBackend::kRef, KernelBackend::kPortable, KernelBackend::kNeon,
                                      KernelBackend::kAvx2, KernelBackend::kAvx512, KernelBackend::kAmx}) {
    if (name == kernel_backend_name(backend)) return std::optional<KernelBackend>{backend};
  }
  return Status::invalid(cat("kernel backend \"", name, "\": expected ref, portable, neon, avx2, avx512, amx or auto"));
}

std::string KernelTable::describe() const {
  const KernelTable reference = table_of(KernelBackend::kRef);
  std::string line = cat("kernels: ", kernel_backend_name(backend));
  const auto note = [&](std::string_view op, bool is_reference) {
    if (is_reference && backend != KernelBackend::kRef) line += cat(", ", op, "=ref");
  };
#define TANDEM_DESCRIBE(op) note(#op, op == reference.op);
  TANDEM_FOR_EACH_OPERATOR(TANDEM_DESCRIBE)
  TANDEM_DESCRIBE(router_select)
#undef TANDEM_DESCRIBE
  return line;
}

}  // namespace tandem
