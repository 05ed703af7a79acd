#define TANDEM_SET avx512
#include "kernels/linear/linear_simd.inl"

namespace tandem::avx512 {

void linear(const ExecContext& ctx, const LinearArgs& args) { linear_simd(ctx, args); }

}  // namespace tandem::avx512
