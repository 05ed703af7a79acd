#include "kernels/mla/mla_expanded_simd.inl"

namespace tandem::portable {

void mla_expanded(const ExecContext& ctx, const MlaArgs& args) { run_mla_expanded(ctx, args); }

}  // namespace tandem::portable
