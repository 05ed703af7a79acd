#define TANDEM_SET portable
#include "kernels/moe/experts_simd.inl"

namespace tandem::portable {

void moe_experts(const ExecContext& ctx, const MoeExpertsArgs& args) { moe_experts_simd(ctx, args); }

}  // namespace tandem::portable
