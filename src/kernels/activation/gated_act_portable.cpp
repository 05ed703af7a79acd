#include "kernels/activation/gated_act_simd.inl"

namespace tandem::portable {

void gated_act(const ExecContext& ctx, const GatedActArgs& args) { gated_act_simd(ctx, args); }

}  // namespace tandem::portable
