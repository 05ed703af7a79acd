#include <cmath>

#include "kernels/backend_entries.h"

namespace tandem::ref {
namespace {

// rsqrt(mean(x²) + eps) with divisor D, or rsqrt(Σ x² + eps) with divisor 1.
float inverse_root(const float* x, int64_t size, float divisor, float eps) {
  float squares = 0.f;
  for (int64_t d = 0; d < size; ++d) squares += x[d] * x[d];
  return 1.f / std::sqrt(squares / divisor + eps);
}

}  // namespace

void rms_norm(const ExecContext&, const RmsNormArgs& a) {
  const int64_t D = a.x.shape[1];
  for (int64_t t = 0; t < a.x.shape[0]; ++t) {
    const float inv = inverse_root(a.x.row(t), D, static_cast<float>(D), a.eps);
    for (int64_t d = 0; d < D; ++d) a.out(t, d) = a.weight(d) * (a.x(t, d) * inv);
  }
}

void rms_norm_gated(const ExecContext&, const RmsNormGatedArgs& a) {
  const int64_t D = a.x.shape[1];
  for (int64_t t = 0; t < a.x.shape[0]; ++t) {
    const float inv = inverse_root(a.x.row(t), D, static_cast<float>(D), a.eps);
    for (int64_t d = 0; d < D; ++d) {
      const float sigmoid = 1.f / (1.f + std::exp(-a.gate(t, d)));
      a.out(t, d) = a.weight(d) * (a.x(t, d) * inv) * sigmoid;
    }
  }
}

void l2_norm(const ExecContext&, const L2NormArgs& a) {
  const int64_t D = a.x.shape[1];
  for (int64_t t = 0; t < a.x.shape[0]; ++t) {
    const float inv = inverse_root(a.x.row(t), D, 1.f, a.eps);
    for (int64_t d = 0; d < D; ++d) a.out(t, d) = a.x(t, d) * inv;
  }
}

}  // namespace tandem::ref
