// engine/serving/cache_compare.h: the first place where the caches of two sequences differ. Bitwise.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "cache/cache_layout.h"
#include "cache/layer_cache.h"

namespace tandem {

struct CacheMismatch {
  std::string what;      // "kda_state", "conv_history", "mla_latent" or "logits"
  int64_t layer = 0;     // from 0; of logits: the number of layers
  int64_t position = 0;  // the token whose row it is, or that the state comes after
  int64_t element = 0;   // [H, K, V], [W − 1, 3P], [rank + rope] or [vocab], counted along the last axis
  float expected = 0.f;  // computed again
  float found = 0.f;     // in the cache
};

// Rows [begin, end) of every MLA layer, the earliest row that differs.
std::optional<CacheMismatch> compare_latents(const CacheLayout& layout, const SequenceCacheView& expected,
                                             const SequenceCacheView& found, int64_t begin, int64_t end);

// Recurrent states and conv histories of every KDA layer, both after `position` tokens.
std::optional<CacheMismatch> compare_states(const CacheLayout& layout, const SequenceCacheView& expected,
                                            const SequenceCacheView& found, int64_t position);

std::optional<CacheMismatch> compare_logits(std::span<const float> expected, std::span<const float> found,
                                            int64_t num_layers, int64_t position);

}  // namespace tandem
