#include "kernels/kda/kda_decode_simd.inl"

namespace tandem::neon {

void kda_decode(const ExecContext& ctx, const KdaDecodeArgs& args) { run_kda_decode(ctx, args); }

}  // namespace tandem::neon
