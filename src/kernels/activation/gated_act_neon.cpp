#include "kernels/activation/gated_act_simd.inl"

namespace tandem::neon {

void gated_act(const ExecContext& ctx, const GatedActArgs& args) { gated_act_simd(ctx, args); }

}  // namespace tandem::neon
