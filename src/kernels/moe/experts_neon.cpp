#define TANDEM_SET neon
#include "kernels/moe/experts_simd.inl"

namespace tandem::neon {

void moe_experts(const ExecContext& ctx, const MoeExpertsArgs& args) { moe_experts_simd(ctx, args); }

}  // namespace tandem::neon
