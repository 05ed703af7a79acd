#include "kernels/mla/mla_expanded_simd.inl"

namespace tandem::neon {

void mla_expanded(const ExecContext& ctx, const MlaArgs& args) { run_mla_expanded(ctx, args); }

}  // namespace tandem::neon
