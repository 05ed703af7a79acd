#include "kernels/kda/kda_chunked_simd.inl"

namespace tandem::neon {

void kda_chunked(const ExecContext& ctx, const KdaArgs& args) { run_kda_chunked(ctx, args); }

}  // namespace tandem::neon
