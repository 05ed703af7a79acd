#include "kernels/norm/norm_simd.inl"

namespace tandem::neon {

void rms_norm(const ExecContext& ctx, const RmsNormArgs& args) { rms_norm_simd(ctx, args); }
void rms_norm_gated(const ExecContext& ctx, const RmsNormGatedArgs& args) { rms_norm_gated_simd(ctx, args); }
void l2_norm(const ExecContext& ctx, const L2NormArgs& args) { l2_norm_simd(ctx, args); }

}  // namespace tandem::neon
