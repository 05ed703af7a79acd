#define TANDEM_SET portable
#include "kernels/linear/linear_simd.inl"

namespace tandem::portable {

void linear(const ExecContext& ctx, const LinearArgs& args) { linear_simd(ctx, args); }

}  // namespace tandem::portable
