// What sequences give to the index: units whose latents are written, and checkpoints.
#include <algorithm>

#include "base/check.h"
#include "cache/hybrid_cache_impl.h"
#include "cache/stored_scan.h"

namespace tandem {

void HybridCache::Impl::stand_on_nodes(CachedSequence& sequence) {
  if (!sequence.is_shared) return;
  sequence.root = index.root(sequence.scope);
  PrefixIndex::Node* node = sequence.root;
  const std::span<const TokenId> tokens = sequence.tokens;
  const int64_t num_units = static_cast<int64_t>(tokens.size()) / layout.hash_unit;
  for (int64_t unit = 0; unit < num_units; ++unit) {
    node = index.extend(
        node, tokens.subspan(static_cast<size_t>(unit * layout.hash_unit), static_cast<size_t>(layout.hash_unit)));
    sequence.nodes.push_back(node);
    if (unit < sequence.published) {
      index.credit(node, sequence.scope);
    } else {
      index.announce(node, sequence.scope, true);
    }
  }
  sequence.announced_end = num_units;
}

void HybridCache::Impl::leave_nodes(CachedSequence& sequence) {
  if (!sequence.is_shared) return;
  for (auto unit = static_cast<int64_t>(sequence.nodes.size()) - 1; unit >= 0; --unit) {
    PrefixIndex::Node* node = sequence.nodes[static_cast<size_t>(unit)];
    if (unit >= sequence.published && unit < sequence.announced_end) index.announce(node, sequence.scope, false);
    index.give_back(node);
  }
  index.give_back(sequence.root);
  sequence.nodes.clear();
  sequence.root = nullptr;
}

bool HybridCache::Impl::is_refused(const CachedSequence& sequence) const {
  return sequence.is_refused || (!sequence.nodes.empty() && index.is_cut_off(sequence.nodes.back()));
}

bool HybridCache::Impl::is_unit_finite(const CachedSequence& sequence, int64_t unit) const {
  const int64_t row_bytes = layout.cache.latent_row_bytes();
  const int64_t row = unit * layout.hash_unit % layout.cache.page_tokens;
  for (int64_t s = 0; s < layout.num_mla_layers; ++s) {
    const BlockId block = sequence.pages[static_cast<size_t>(unit / layout.units_per_page())];
    const std::byte* rows = pool->slot(block, s) + row * row_bytes;
    if (!all_finite({rows, static_cast<size_t>(layout.hash_unit * row_bytes)}, layout.cache.dtype)) return false;
  }
  return true;
}

int64_t HybridCache::Impl::shared_end(const CachedSequence& sequence, int64_t end) const {
  return options.share_generated ? end : std::min(end, sequence.prompt_tokens);
}

void HybridCache::Impl::publish(CachedSequence& sequence) {
  if (!sequence.is_shared || sequence.is_refused) return;
  const int64_t whole_units = shared_end(sequence, sequence.committed) / layout.hash_unit;
  for (; sequence.published < whole_units; ++sequence.published) {
    const int64_t unit = sequence.published;
    if (layout.num_mla_layers > 0 && !is_unit_finite(sequence, unit)) {
      sequence.is_refused = true;
      ++counts.refused_non_finite;
      return;
    }
    if (unit == static_cast<int64_t>(sequence.nodes.size())) {
      PrefixIndex::Node* parent = unit == 0 ? sequence.root : sequence.nodes.back();
      sequence.nodes.push_back(index.extend(
          parent, std::span<const TokenId>(sequence.tokens)
                      .subspan(static_cast<size_t>(unit * layout.hash_unit), static_cast<size_t>(layout.hash_unit))));
    }
    PrefixIndex::Node* node = sequence.nodes[static_cast<size_t>(unit)];
    if (layout.num_mla_layers > 0) {
      const BlockId block = sequence.pages[static_cast<size_t>(unit / layout.units_per_page())];
      if (index.add_latents(node, block)) pool->set_named(block, true);
    }
    index.credit(node, sequence.scope);
    if (unit < sequence.announced_end) index.announce(node, sequence.scope, false);
  }
}

void HybridCache::Impl::store_checkpoint(CachedSequence& sequence, const CaptureSlot& capture, int64_t position) {
  if (!sequence.is_shared || sequence.is_refused) return;
  PrefixIndex::Node* node = sequence.nodes[static_cast<size_t>(position / layout.hash_unit - 1)];
  const auto superseded = sequence.rolling;
  sequence.rolling.reset();
  if (!index.checkpoint_at(node)) {
    const auto id = store.add(position, index.hash(node), capture.blocks);
    if (!id) {
      sequence.is_refused = true;
      ++counts.refused_non_finite;
      sequence.rolling = superseded;
      return;
    }
    IndexLoss loss;
    if (index.add_checkpoint(node, *id, capture.reason, loss)) {
      ++counts.checkpoints_taken;
      sequence.checkpoints.push_back(*id);
      if (capture.is_rolling) sequence.rolling = *id;
    } else {
      store.forget(*id);
    }
    apply(loss);
  }
  // One that somebody resumed from has proved to be worth its place.
  const StoredCheckpoint* old = superseded ? store.find(*superseded) : nullptr;
  if (old != nullptr && old->num_hits == 0) drop_checkpoint(*superseded, MissReason::kNoCheckpoint);
}

}  // namespace tandem
