// cache/pool_layout.h: how one pool of equal blocks holds both kinds of cache. Pure arithmetic (systems.md §1.3, §1.4).
//
//   A block is a column of `slots_per_block` slots of `slot_stride` bytes. An MLA block is one page: its slot i holds
//   `page_tokens` latent rows of the i-th MLA layer. KDA layers are dealt out to groups in turn (the j-th KDA layer to
//   group j mod num_kda_groups, slot j / num_kda_groups); a KDA block is the state of one group at one position.
//
//     MLA block   | layer 3: rows 0 … page_tokens−1 | layer 7: rows … | …
//     KDA block   | layer 0: recurrent, conv, unused | layer 4: … | …          (group 0 of 3)
//
//   The page is the shortest one, in whole hash units, whose slot holds a KDA state: so both kinds draw from one list.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "cache/cache_layout.h"

namespace tandem {

struct PageSize {
  int64_t page_tokens = 0;
  int64_t page_bytes = 0;     // of one layer's page
  int64_t padding_bytes = 0;  // of it that a KDA state leaves unused
};

// The smallest multiple of `granule_tokens` whose page holds `state_bytes`; at least one granule. With token_bytes 0
// (no MLA layers) the page is the state itself.
PageSize choose_page_size(int64_t state_bytes, int64_t token_bytes, int64_t granule_tokens);

struct LayerSlot {
  int32_t group = 0;  // of a KDA layer; 0 for MLA
  int32_t slot = 0;   // of the block
};

struct PoolLayout {
  CacheLayout cache;  // page_tokens is the pool's
  int64_t hash_unit = 0;
  int64_t num_kda_layers = 0;
  int64_t num_mla_layers = 0;
  int64_t num_kda_groups = 0;
  int64_t slots_per_block = 0;
  int64_t slot_bytes = 0;         // of payload
  int64_t slot_stride = 0;        // whole pages of memory, so that blocks are committed one by one
  int64_t conv_offset = 0;        // in a KDA slot: behind the recurrent matrices, 64-byte aligned
  int64_t state_bytes = 0;        // of a KDA slot in use
  std::vector<LayerSlot> layers;  // by layer of the model

  int64_t block_bytes() const { return slots_per_block * slot_stride; }
  int64_t units_per_page() const { return cache.page_tokens / hash_unit; }
  int64_t pages(int64_t tokens) const;  // that hold so many; 0 without MLA layers
  // Blocks of a sequence of `tokens` tokens that found `hit_tokens` of them: its running state, and pages of its own
  // from the one the hit ends in on.
  int64_t blocks_needed(int64_t tokens, int64_t hit_tokens) const;
  int64_t kda_layers_in_group(int64_t group) const;
};

// kInvalidArgument names the option. `num_kda_groups`: none: as many as MLA layers fit under one column.
Result<PoolLayout> make_pool_layout(const CacheLayout& cache, int64_t hash_unit, std::optional<int64_t> num_kda_groups);

}  // namespace tandem
