#include "kernels/attn_res/attn_res_simd.inl"

namespace tandem::neon {

void attn_res_mix(const ExecContext& ctx, const AttnResMixArgs& args) { attn_res_mix_simd(ctx, args); }

}  // namespace tandem::neon
