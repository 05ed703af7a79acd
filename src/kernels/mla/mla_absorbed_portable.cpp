#include "kernels/mla/mla_absorbed_simd.inl"

namespace tandem::portable {

void mla_absorbed(const ExecContext& ctx, const MlaArgs& args) { run_mla_absorbed(ctx, args); }

}  // namespace tandem::portable
