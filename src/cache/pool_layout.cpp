#include "cache/pool_layout.h"

#include <algorithm>

#include "base/cat.h"
#include "base/check.h"
#include "kernels/kda/kda.h"

namespace tandem {
namespace {

constexpr int64_t kMemoryPage = 4096;
constexpr int64_t kRowAlignment = 64;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace

PageSize choose_page_size(int64_t state_bytes, int64_t token_bytes, int64_t granule_tokens) {
  TANDEM_CHECK(granule_tokens > 0 && state_bytes >= 0 && token_bytes >= 0, "sizes of a page");
  if (token_bytes == 0) return {.page_tokens = granule_tokens, .page_bytes = state_bytes, .padding_bytes = 0};
  const int64_t needed = ceil_div(state_bytes, token_bytes);
  const int64_t tokens = std::max(round_up(needed, granule_tokens), granule_tokens);
  const int64_t bytes = tokens * token_bytes;
  return {.page_tokens = tokens, .page_bytes = bytes, .padding_bytes = bytes - state_bytes};
}

int64_t PoolLayout::pages(int64_t tokens) const {
  return num_mla_layers == 0 ? 0 : ceil_div(tokens, cache.page_tokens);
}

int64_t PoolLayout::blocks_needed(int64_t tokens, int64_t hit_tokens) const {
  const int64_t shared = num_mla_layers == 0 ? 0 : hit_tokens / cache.page_tokens;
  return num_kda_groups + std::max<int64_t>(pages(tokens) - shared, 0);
}

int64_t PoolLayout::kda_layers_in_group(int64_t group) const {
  return ceil_div(num_kda_layers - group, num_kda_groups);
}

Result<PoolLayout> make_pool_layout(const CacheLayout& cache, int64_t hash_unit,
                                    std::optional<int64_t> num_kda_groups) {
  if (hash_unit <= 0 || hash_unit % kKdaChunk != 0) {
    return Status::invalid(
        cat("hash unit: expected a positive multiple of the KDA chunk of ", kKdaChunk, " tokens, found ", hash_unit));
  }
  if (cache.kinds.empty()) return Status::invalid("cache layout: the model has no layers");
  PoolLayout layout;
  layout.cache = cache;
  layout.hash_unit = hash_unit;
  layout.num_kda_layers = cache.num_kda_layers();
  layout.num_mla_layers = cache.num_mla_layers();
  if (num_kda_groups && (layout.num_kda_layers == 0 ? *num_kda_groups != 0
                                                    : *num_kda_groups < 1 || *num_kda_groups > layout.num_kda_layers)) {
    return Status::invalid(
        cat("KDA groups: expected 1 to ", layout.num_kda_layers, ", one for each KDA layer, found ", *num_kda_groups));
  }
  const int64_t column = std::max<int64_t>(layout.num_mla_layers, 1);
  if (layout.num_kda_layers > 0) {
    const int64_t fitting = layout.num_mla_layers == 0 ? 1 : ceil_div(layout.num_kda_layers, column);
    layout.num_kda_groups = num_kda_groups.value_or(fitting);
    layout.conv_offset = round_up(cache.recurrent_bytes(), kRowAlignment);
    layout.state_bytes = layout.conv_offset + cache.conv_bytes();
  }
  const int64_t largest_group = layout.num_kda_groups == 0 ? 0 : ceil_div(layout.num_kda_layers, layout.num_kda_groups);
  layout.slots_per_block = std::max(layout.num_mla_layers, largest_group);
  const int64_t row_bytes = layout.num_mla_layers == 0 ? 0 : cache.latent_row_bytes();
  const PageSize page = choose_page_size(layout.state_bytes, row_bytes, hash_unit);
  layout.cache.page_tokens = page.page_tokens;
  layout.slot_bytes = page.page_bytes;
  layout.slot_stride = round_up(page.page_bytes, kMemoryPage);
  int32_t next_kda = 0;
  int32_t next_mla = 0;
  for (const LayerKind kind : cache.kinds) {
    if (kind == LayerKind::kKda) {
      const auto groups = static_cast<int32_t>(layout.num_kda_groups);
      layout.layers.push_back({.group = next_kda % groups, .slot = next_kda / groups});
      ++next_kda;
    } else {
      layout.layers.push_back({.group = 0, .slot = next_mla++});
    }
  }
  return layout;
}

}  // namespace tandem
