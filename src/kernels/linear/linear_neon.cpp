#define TANDEM_SET neon
#include "kernels/linear/linear_simd.inl"

namespace tandem::neon {

void linear(const ExecContext& ctx, const LinearArgs& args) { linear_simd(ctx, args); }

}  // namespace tandem::neon
