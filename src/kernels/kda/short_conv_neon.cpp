#include "kernels/kda/short_conv_simd.inl"

namespace tandem::neon {

void short_conv(const ExecContext& ctx, const ShortConvArgs& args) { run_short_conv(ctx, args); }

}  // namespace tandem::neon
