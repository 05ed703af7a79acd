#define TANDEM_SET avx512
#include "kernels/moe/experts_simd.inl"

namespace tandem::avx512 {

void moe_experts(const ExecContext& ctx, const MoeExpertsArgs& args) { moe_experts_simd(ctx, args); }

}  // namespace tandem::avx512
