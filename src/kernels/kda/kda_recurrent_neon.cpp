#include "kernels/kda/kda_recurrent_simd.inl"

namespace tandem::neon {

void kda_recurrent(const ExecContext& ctx, const KdaArgs& args) { run_kda_recurrent(ctx, args); }

}  // namespace tandem::neon
