// Blocks of the hybrid cache: taking them, evicting, copying between them, and the views that point into them.
#include <cstring>

#include "base/cat.h"
#include "base/check.h"
#include "cache/hybrid_cache_impl.h"

namespace tandem {

BlockId HybridCache::Impl::take_block(BlockKind kind, int32_t group) {
  while (true) {
    if (const auto block = pool->allocate(kind, group)) return *block;
    evict_one();
  }
}

void HybridCache::Impl::evict_one() {
  const auto oldest = pool->oldest_cached();
  TANDEM_CHECK(oldest.has_value(), "whoever takes a block has seen that one is available");
  const int64_t free_before = pool->num_free();
  if (pool->meta(*oldest).kind == BlockKind::kKda) {
    drop_checkpoint(pool->meta(*oldest).checkpoint, MissReason::kEvicted);
  } else {
    apply(index.remove_block(*oldest, MissReason::kEvicted));
    pool->set_named(*oldest, false);
  }
  TANDEM_CHECK(pool->num_free() > free_before, "an evicted block is free");
  counts.evicted_blocks += pool->num_free() - free_before;
}

void HybridCache::Impl::apply(const IndexLoss& loss) {
  for (const BlockId block : loss.blocks) pool->set_named(block, false);
  for (const CheckpointId id : loss.checkpoints) store.forget(id);
}

void HybridCache::Impl::drop_checkpoint(CheckpointId id, MissReason why) {
  apply(index.remove_checkpoint(id, why));
  store.forget(id);
}

void HybridCache::Impl::take_state(std::vector<BlockId>& blocks) {
  blocks.clear();
  for (int32_t g = 0; g < layout.num_kda_groups; ++g) {
    blocks.push_back(take_block(BlockKind::kKda, g));
    pool->mark_dirty(blocks.back(), layout.state_bytes);
  }
}

void HybridCache::Impl::drop_uses(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) pool->drop_use(block);
}

void HybridCache::Impl::copy_state(std::span<const BlockId> from, std::span<const BlockId> to) {
  for (size_t g = 0; g < to.size(); ++g) {
    const BlockMeta& source = pool->meta(from[g]);
    TANDEM_CHECK(source.kind == BlockKind::kKda && source.group == pool->meta(to[g]).group, "states of one group");
    const int64_t num_slots = layout.kda_layers_in_group(source.group);
    for (int64_t s = 0; s < num_slots; ++s) {
      std::memcpy(pool->slot(to[g], s), pool->slot(from[g], s), static_cast<size_t>(layout.state_bytes));
    }
    pool->set_version(to[g], pool->meta(to[g]).version + 1);
    pool->set_valid_tokens(to[g], source.valid_tokens);
    counts.copied_bytes += num_slots * layout.state_bytes;
  }
}

void HybridCache::Impl::copy_rows(BlockId from, BlockId to, int64_t num_rows) {
  TANDEM_CHECK(pool->meta(from).valid_tokens >= num_rows, "rows that are copied were committed");
  const int64_t bytes = num_rows * layout.cache.latent_row_bytes();
  pool->mark_dirty(to, bytes);
  for (int64_t s = 0; s < layout.num_mla_layers; ++s) {
    std::memcpy(pool->slot(to, s), pool->slot(from, s), static_cast<size_t>(bytes));
  }
  pool->set_valid_tokens(to, num_rows);
  counts.copied_bytes += bytes * layout.num_mla_layers;
}

std::string HybridCache::Impl::identity() const {
  return cat(options.identity, "/", dtype_name(layout.cache.dtype), "/", layout.cache.latent_width, "/",
             layout.cache.recurrent_elements(), "/", layout.cache.conv_elements());
}

void HybridCache::Impl::make_layers(std::vector<LayerCache>& layers) const {
  layers.clear();
  for (const LayerKind kind : layout.cache.kinds) {
    if (kind == LayerKind::kKda) {
      layers.push_back(KdaState{.dtype = layout.cache.dtype});
    } else {
      layers.push_back(MlaLatent{.pages = {}, .page_tokens = layout.cache.page_tokens, .dtype = layout.cache.dtype});
    }
  }
}

void HybridCache::Impl::point_states(std::vector<LayerCache>& layers, std::span<const BlockId> blocks,
                                     int64_t position) const {
  for (size_t l = 0; l < layers.size(); ++l) {
    auto* state = std::get_if<KdaState>(&layers[l]);
    if (state == nullptr) continue;
    const LayerSlot& place = layout.layers[l];
    const BlockId block = blocks[static_cast<size_t>(place.group)];
    std::byte* bytes = pool->slot(block, place.slot);
    state->recurrent = bytes;
    state->conv = bytes + layout.conv_offset;
    state->position = position;
    state->state_version = pool->meta(block).version;
  }
}

void HybridCache::Impl::add_page(CachedSequence& sequence, BlockId block) {
  sequence.pages.push_back(block);
  for (size_t l = 0; l < sequence.layers.size(); ++l) {
    auto* latent = std::get_if<MlaLatent>(&sequence.layers[l]);
    if (latent == nullptr) continue;
    std::vector<std::byte*>& table = sequence.page_tables[l];
    table.push_back(pool->slot(block, layout.layers[l].slot));
    latent->pages = table;
  }
}

void HybridCache::Impl::set_length(CachedSequence& sequence, int64_t length) {
  sequence.committed = length;
  for (LayerCache& layer : sequence.layers) {
    if (auto* latent = std::get_if<MlaLatent>(&layer)) latent->length = length;
  }
}

}  // namespace tandem
