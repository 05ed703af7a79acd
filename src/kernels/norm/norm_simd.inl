// kernels/norm/norm_simd.inl: the three norms over Vec.
#include "kernels/backend_entries.h"
#include "kernels/norm/norm_rows.h"
#include "kernels/simd/scratch.h"

namespace tandem {
namespace {

using namespace simd;

void rms_norm_simd(const ExecContext& ctx, const RmsNormArgs& a) {
  const int64_t D = a.x.shape[1];
  const float* weight = a.weight.data;
  for_each_row(ctx, a.x.shape[0], D, [&](int64_t t, int) {
    const float* x = row_of(a.x, t);
    float* out = row_of(a.out, t);
    const Vec inv = inverse_root(x, D, static_cast<float>(D), a.eps);
    for_each_block(D, [&](int64_t d, auto block) TANDEM_INLINE_LAMBDA {
      store(out + d, load(weight + d, block) * (load(x + d, block) * inv), block);
    });
  });
}

void rms_norm_gated_simd(const ExecContext& ctx, const RmsNormGatedArgs& a) {
  const int64_t D = a.x.shape[1];
  for_each_row(ctx, a.x.shape[0], D, [&](int64_t t, int) {
    gated_norm_row(row_of(a.x, t), row_of(a.gate, t), a.weight.data, D, a.eps, row_of(a.out, t));
  });
}

void l2_norm_simd(const ExecContext& ctx, const L2NormArgs& a) {
  const int64_t D = a.x.shape[1];
  for_each_row(ctx, a.x.shape[0], D, [&](int64_t t, int) { l2_norm_row(row_of(a.x, t), D, a.eps, row_of(a.out, t)); });
}

}  // namespace
}  // namespace tandem
