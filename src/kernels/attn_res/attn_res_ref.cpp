#include <cmath>

#include "kernels/backend_entries.h"

namespace tandem::ref {

void attn_res_mix(const ExecContext& ctx, const AttnResMixArgs& a) {
  const int64_t D = a.out.shape[1];
  const auto n = static_cast<int64_t>(a.sources.size());
  const ArenaScope scope(ctx.arena);
  const std::span<float> score = ctx.arena.alloc<float>(n);
  for (int64_t t = 0; t < a.out.shape[0]; ++t) {
    if (n == 1) {  // the softmax of one score is 1, and 1 · s is s even where the score is not finite
      for (int64_t d = 0; d < D; ++d) a.out(t, d) = a.sources[0](t, d);
      continue;
    }
    float largest = -INFINITY;
    for (int64_t i = 0; i < n; ++i) {
      const float* s = a.sources[i].row(t);
      float squares = 0.f;
      float dot = 0.f;
      for (int64_t d = 0; d < D; ++d) {
        squares += s[d] * s[d];
        dot += s[d] * a.score_weight(d);
      }
      score[i] = dot / std::sqrt(squares / static_cast<float>(D) + a.eps);
      largest = std::fmax(largest, score[i]);
    }
    float total = 0.f;
    for (int64_t i = 0; i < n; ++i) {
      score[i] = std::exp(score[i] - largest);
      total += score[i];
    }
    for (int64_t d = 0; d < D; ++d) {
      float mixed = 0.f;
      for (int64_t i = 0; i < n; ++i) mixed += score[i] / total * a.sources[i](t, d);
      a.out(t, d) = mixed;
    }
  }
}

}  // namespace tandem::ref
