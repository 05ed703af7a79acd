#define TANDEM_SET avx2
#include "kernels/moe/experts_simd.inl"

namespace tandem::avx2 {

void moe_experts(const ExecContext& ctx, const MoeExpertsArgs& args) { moe_experts_simd(ctx, args); }

}  // namespace tandem::avx2
