#include "kernels/mla/mla_absorbed_simd.inl"

namespace tandem::neon {

void mla_absorbed(const ExecContext& ctx, const MlaArgs& args) { run_mla_absorbed(ctx, args); }

}  // namespace tandem::neon
