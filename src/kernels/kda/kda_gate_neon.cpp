#include "kernels/kda/kda_gate_simd.inl"

namespace tandem::neon {

void kda_gate(const ExecContext& ctx, const KdaGateArgs& args) { run_kda_gate(ctx, args); }

}  // namespace tandem::neon
