#include <cmath>

#include "kernels/backend_entries.h"

namespace tandem::ref {
namespace {

// Buffers of one token; E scores each, and a flag or value a group.
struct RouterScratch {
  std::span<float> score;   // s, unbiased
  std::span<float> biased;  // b, −inf once refused or taken
  std::span<float> group_score;
};

// The largest element, the lowest index among equals; −inf elements are candidates of the last resort.
int64_t argmax(std::span<const float> values) {
  size_t best = 0;
  for (size_t i = 1; i < values.size(); ++i) {
    if (values[i] > values[best]) best = i;
  }
  return static_cast<int64_t>(best);
}

float sum_of_two_largest(std::span<const float> values) {
  float first = -INFINITY;
  float second = -INFINITY;
  for (const float v : values) {
    if (v > first) {
      second = first;
      first = v;
    } else if (v > second) {
      second = v;
    }
  }
  return values.size() == 1 ? first : first + second;
}

void mask_refused_groups(const RouterScratch& scratch, int64_t num_groups, int64_t topk_group) {
  const size_t width = scratch.biased.size() / static_cast<size_t>(num_groups);
  for (size_t g = 0; g < scratch.group_score.size(); ++g) {
    scratch.group_score[g] = sum_of_two_largest(scratch.biased.subspan(g * width, width));
  }
  // A kept group is marked NaN, which no comparison selects again; what is not marked afterwards is refused.
  for (int64_t kept = 0; kept < topk_group; ++kept) {
    int64_t best = -1;
    for (int64_t g = 0; g < num_groups; ++g) {
      if (std::isnan(scratch.group_score[g])) continue;
      if (best < 0 || scratch.group_score[g] > scratch.group_score[best]) best = g;
    }
    scratch.group_score[best] = NAN;
  }
  for (int64_t g = 0; g < num_groups; ++g) {
    if (std::isnan(scratch.group_score[g])) continue;
    for (float& b : scratch.biased.subspan(static_cast<size_t>(g) * width, width)) b = -INFINITY;
  }
}

}  // namespace

void router_select(const ExecContext& ctx, const RouterSelectArgs& a) {
  const int64_t E = a.logits.shape[1];
  const int64_t k = a.topk_ids.shape[1];
  const ArenaScope scope(ctx.arena);
  const RouterScratch scratch{ctx.arena.alloc<float>(E), ctx.arena.alloc<float>(E),
                              ctx.arena.alloc<float>(a.num_groups)};
  for (int64_t t = 0; t < a.logits.shape[0]; ++t) {
    bool row_is_finite = true;
    for (int64_t e = 0; e < E; ++e) {
      scratch.score[e] = 1.f / (1.f + std::exp(-a.logits(t, e)));
      scratch.biased[e] = scratch.score[e] + a.bias(e);
      row_is_finite = row_is_finite && std::isfinite(scratch.biased[e]);
    }
    if (!row_is_finite) {
      for (int64_t j = 0; j < k; ++j) {
        a.topk_ids(t, j) = static_cast<int32_t>(j);
        a.topk_weights(t, j) = NAN;
      }
      continue;
    }
    if (a.topk_group < a.num_groups) mask_refused_groups(scratch, a.num_groups, a.topk_group);

    for (int64_t j = 0; j < k; ++j) {
      const int64_t best = argmax(scratch.biased);
      scratch.biased[best] = -INFINITY;
      int64_t slot = j;  // insertion keeps the ids ascending
      for (; slot > 0 && a.topk_ids(t, slot - 1) > best; --slot) a.topk_ids(t, slot) = a.topk_ids(t, slot - 1);
      a.topk_ids(t, slot) = static_cast<int32_t>(best);
    }
    float total = 0.f;
    for (int64_t j = 0; j < k; ++j) total += scratch.score[a.topk_ids(t, j)];
    const float divisor = a.renormalize && k > 1 ? total + 1e-20f : 1.f;
    for (int64_t j = 0; j < k; ++j) a.topk_weights(t, j) = scratch.score[a.topk_ids(t, j)] / divisor * a.scale;
  }
}

}  // namespace tandem::ref
