// kernels/attn_res/attn_res_simd.inl: the softmax over depth, over Vec. A source row is read twice: once for its score
// (sum of squares and dot product together), once for the mix.
#include "kernels/backend_entries.h"
#include "kernels/simd/rows.h"
#include "kernels/simd/scratch.h"
#include "kernels/simd/vec_math.h"

namespace tandem {
namespace {

using namespace simd;

TANDEM_INLINE float source_score(const float* s, const float* weight, int64_t D, float eps) {
  Vec squares[2] = {zero(), zero()};
  Vec dot[2] = {zero(), zero()};
  int64_t d = 0;
  for (; d + 2 * Vec::kLanes <= D; d += 2 * Vec::kLanes) {
    for (int j = 0; j < 2; ++j) {
      const Vec v = load(s + d + j * Vec::kLanes);
      squares[j] = fma(v, v, squares[j]);
      dot[j] = fma(v, load(weight + d + j * Vec::kLanes), dot[j]);
    }
  }
  for_each_block(D - d, [&](int64_t i, auto block) TANDEM_INLINE_LAMBDA {
    const Vec v = load(s + d + i, block);
    squares[0] = fma(v, v, squares[0]);
    dot[0] = fma(v, load(weight + d + i, block), dot[0]);
  });
  const float mean = sum(squares[0] + squares[1]) / static_cast<float>(D);
  return sum(dot[0] + dot[1]) / __builtin_sqrtf(mean + eps);
}

// score[0..n) ← softmax(score).
TANDEM_INLINE void softmax_inplace(float* score, int64_t n) {
  float largest = score[0];
  for (int64_t i = 1; i < n; ++i) largest = score[i] > largest ? score[i] : largest;
  float total = 0.f;
  for_each_block(n, [&](int64_t i, auto block) TANDEM_INLINE_LAMBDA {
    store(score + i, exp(load(score + i, block) - broadcast(largest)), block);
  });
  for (int64_t i = 0; i < n; ++i) total += score[i];
  for (int64_t i = 0; i < n; ++i) score[i] /= total;
}

TANDEM_INLINE void mix_token(const AttnResMixArgs& a, const MatrixView<const float>* sources, int64_t n, int64_t t,
                             const float** rows, float* score) {
  const int64_t D = a.out.shape[1];
  float* out = row_of(a.out, t);
  for (int64_t i = 0; i < n; ++i) rows[i] = row_of(sources[i], t);
  if (n == 1) {  // the softmax of one score is 1, and 1 · s is s even where the score is not finite
    for_each_block(
        D, [&](int64_t d, auto block) TANDEM_INLINE_LAMBDA { store(out + d, load(rows[0] + d, block), block); });
    return;
  }
  for (int64_t i = 0; i < n; ++i) score[i] = source_score(rows[i], a.score_weight.data, D, a.eps);
  softmax_inplace(score, n);
  for_each_block(D, [&](int64_t d, auto block) TANDEM_INLINE_LAMBDA {
    Vec mixed = zero();
    for (int64_t i = 0; i < n; ++i) mixed = fma(broadcast(score[i]), load(rows[i] + d, block), mixed);
    store(out + d, mixed, block);
  });
}

void attn_res_mix_simd(const ExecContext& ctx, const AttnResMixArgs& a) {
  const auto n = static_cast<int64_t>(a.sources.size());
  const MatrixView<const float>* sources = a.sources.data();
  Scratch scratch(ctx.arena);
  const int threads = ctx.pool.num_threads();
  float* scores = scratch.floats(n * threads);
  auto* rows = static_cast<const float**>(scratch.bytes(n * threads * static_cast<int64_t>(sizeof(float*))));
  for_each_row(ctx, a.out.shape[0], 2 * n * a.out.shape[1],
               [&](int64_t t, int thread) { mix_token(a, sources, n, t, rows + n * thread, scores + n * thread); });
}

}  // namespace
}  // namespace tandem
