// kernels/moe/expert_groups.h: the (token, slot) pairs of a block of tokens, sorted by expert: what every vectorised
// form of moe_experts begins with. Included by files of one instruction set only.
#pragma once

#include <cstdint>

#include "kernels/moe/experts.h"
#include "kernels/simd/scratch.h"

namespace tandem {
namespace {

// Pairs by expert, then token, then slot: pair_begin[i] .. pair_begin[i + 1] belong to active[i]. The caller gives the
// memory: active and pair_begin [E] and [E + 1], pair [tokens · k].
struct ExpertGroups {
  int64_t first_token;
  int32_t* active;
  int32_t* pair_begin;
  int32_t* pair;  // token · k + slot, token counted from first_token
  int64_t num_active;
};

// Counting sort; experts outside the arguments' range are left out. `count` has E entries.
TANDEM_INLINE void group_by_expert(ExpertGroups& groups, const MoeExpertsArgs& a, int64_t tokens, int32_t* count) {
  const auto E = static_cast<int64_t>(a.experts.size());
  const int64_t k = a.topk_ids.shape[1];
  for (int64_t e = 0; e < E; ++e) count[e] = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const int32_t* ids = simd::row_of(a.topk_ids, groups.first_token + t);
    for (int64_t j = 0; j < k; ++j) ++count[ids[j]];
  }
  groups.num_active = 0;
  int32_t begin = 0;
  for (int64_t e = a.expert_begin; e < E && e < a.expert_end; ++e) {
    if (count[e] == 0) continue;
    groups.active[groups.num_active] = static_cast<int32_t>(e);
    groups.pair_begin[groups.num_active++] = begin;
    begin += count[e];
    count[e] = begin - count[e];  // where the expert's next pair goes
  }
  groups.pair_begin[groups.num_active] = begin;
  for (int64_t t = 0; t < tokens; ++t) {
    const int32_t* ids = simd::row_of(a.topk_ids, groups.first_token + t);
    for (int64_t j = 0; j < k; ++j) {
      if (ids[j] < a.expert_begin || ids[j] >= a.expert_end) continue;
      groups.pair[count[ids[j]]++] = static_cast<int32_t>(t * k + j);
    }
  }
}

}  // namespace
}  // namespace tandem
