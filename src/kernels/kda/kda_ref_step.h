// kernels/kda/kda_ref_step.h: one token of one head of the recurrence of kda.h in plain loops. The reference forms
// share it: a one-row chunk is this step.
#pragma once

#include <cmath>

#include "kernels/kda/kda.h"

namespace tandem::ref {

// S is the head's [K, V] state.
inline void kda_step(const KdaArgs& args, int64_t t, int64_t h, float* S) {
  const int64_t K = args.q.shape[2];
  const int64_t V = args.v.shape[2];
  for (int64_t j = 0; j < V; ++j) {
    float read = 0.f;  // (Sᵀk)[j], decayed state
    for (int64_t i = 0; i < K; ++i) {
      S[i * V + j] *= std::exp(args.g(t, h, i));
      read += S[i * V + j] * args.k(t, h, i);
    }
    const float delta = args.beta(t, h) * (args.v(t, h, j) - read);
    float o = 0.f;  // (Sᵀq)[j], updated state
    for (int64_t i = 0; i < K; ++i) {
      S[i * V + j] += args.k(t, h, i) * delta;
      o += S[i * V + j] * args.q(t, h, i);
    }
    args.out(t, h, j) = args.scale * o;
  }
}

}  // namespace tandem::ref
