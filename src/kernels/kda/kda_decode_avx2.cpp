#include "kernels/kda/kda_decode_simd.inl"

namespace tandem::avx2 {

void kda_decode(const ExecContext& ctx, const KdaDecodeArgs& args) { run_kda_decode(ctx, args); }

}  // namespace tandem::avx2
