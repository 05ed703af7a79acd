// kernels/kda/kda_gate_ref.cpp: the decay gate of kda.h in plain loops.
#include <algorithm>
#include <cmath>

#include "kernels/backend_entries.h"

namespace tandem::ref {
namespace {

float sigmoid(float x) { return 1.f / (1.f + std::exp(-x)); }

// log(1 + e^x) without overflow.
float softplus(float x) { return std::max(x, 0.f) + std::log1p(std::exp(-std::fabs(x))); }

}  // namespace

void kda_gate(const ExecContext&, const KdaGateArgs& args) {
  const int64_t key_dim = args.z.shape[2];
  for (int64_t t = 0; t < args.z.shape[0]; ++t) {
    for (int64_t h = 0; h < args.z.shape[1]; ++h) {
      const float a = std::exp(args.a_log(h));
      for (int64_t i = 0; i < key_dim; ++i) {
        const float z = args.z(t, h, i) + args.dt_bias(h * key_dim + i);
        args.g(t, h, i) = args.lower_bound.has_value() ? *args.lower_bound * sigmoid(a * z) : -a * softplus(z);
      }
    }
  }
}

}  // namespace tandem::ref
