// kernels/norm/norm_simd.inl: the three norms over Vec. Two passes a row: the sum of squares in four registers (the
// order depends on D alone), then the scaling.
#include "kernels/backend_entries.h"
#include "kernels/simd/rows.h"
#include "kernels/simd/scratch.h"
#include "kernels/simd/vec_math.h"

namespace tandem {
namespace {

using namespace simd;

TANDEM_INLINE float sum_of_squares(const float* x, int64_t size) {
  Vec acc[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * Vec::kLanes <= size; i += 4 * Vec::kLanes) {
    for (int j = 0; j < 4; ++j) {
      const Vec v = load(x + i + j * Vec::kLanes);
      acc[j] = fma(v, v, acc[j]);
    }
  }
  for_each_block(size - i, [&](int64_t j, auto block) TANDEM_INLINE_LAMBDA {
    const Vec v = load(x + i + j, block);
    acc[0] = fma(v, v, acc[0]);
  });
  return sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

TANDEM_INLINE Vec inverse_root(const float* x, int64_t size, float divisor, float eps) {
  return broadcast(1.f / __builtin_sqrtf(sum_of_squares(x, size) / divisor + eps));
}

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
  const float* weight = a.weight.data;
  for_each_row(ctx, a.x.shape[0], D, [&](int64_t t, int) {
    const float* x = row_of(a.x, t);
    const float* gate = row_of(a.gate, t);
    float* out = row_of(a.out, t);
    const Vec inv = inverse_root(x, D, static_cast<float>(D), a.eps);
    for_each_block(D, [&](int64_t d, auto block) TANDEM_INLINE_LAMBDA {
      const Vec normed = load(weight + d, block) * (load(x + d, block) * inv);
      store(out + d, normed * sigmoid(load(gate + d, block)), block);
    });
  });
}

void l2_norm_simd(const ExecContext& ctx, const L2NormArgs& a) {
  const int64_t D = a.x.shape[1];
  for_each_row(ctx, a.x.shape[0], D, [&](int64_t t, int) {
    const float* x = row_of(a.x, t);
    float* out = row_of(a.out, t);
    const Vec inv = inverse_root(x, D, 1.f, a.eps);
    for_each_block(
        D, [&](int64_t d, auto block) TANDEM_INLINE_LAMBDA { store(out + d, load(x + d, block) * inv, block); });
  });
}

}  // namespace
}  // namespace tandem
