#define TANDEM_SET avx2
#include "kernels/linear/linear_simd.inl"

namespace tandem::avx2 {

void linear(const ExecContext& ctx, const LinearArgs& args) { linear_simd(ctx, args); }

}  // namespace tandem::avx2
