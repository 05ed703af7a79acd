// The invariants of systems.md §1.6 over everything the hybrid cache holds.
//
//   I1 lengths agree           every live sequence, layer by layer, with its blocks' own record
//   I2 committed ≤ scheduled   and only a step in flight lies between
//   I3 conv history            is a part of the state, moves with it and is covered by its position and checksum
//   I4 keys tell the truth     checkpoints: versions, position and, when deep, every byte; pages: enough valid rows
//   I5 all groups or none      a checkpoint's blocks are one of every group, all named by it
//   I6 uses                    Σ ref = what sequences and captures hold
#include <algorithm>

#include "base/cat.h"
#include "cache/hybrid_cache_impl.h"

namespace tandem {

std::vector<int32_t> HybridCache::Impl::known_uses() const {
  std::vector<int32_t> uses(static_cast<size_t>(pool->num_blocks()) + 1, 0);
  const auto count = [&](std::span<const BlockId> blocks) {
    for (const BlockId block : blocks) ++uses[static_cast<size_t>(block.value)];
  };
  for (const auto& [id, sequence] : sequences) {
    count(sequence->pages);
    count(sequence->state);
    for (const CaptureSlot& slot : sequence->captures) count(slot.blocks);
  }
  return uses;
}

Status HybridCache::Impl::audit_sequence(const CachedSequence& sequence) const {
  const auto fail = [&](std::string_view what) {
    return Status::failed_precondition(cat("I1: sequence ", sequence.id.value, ": ", what));
  };
  const int64_t length = sequence.committed;
  if (sequence.scheduled() < length) return Status::failed_precondition(cat("I2: sequence ", sequence.id.value));
  if (static_cast<int64_t>(sequence.tokens.size()) < length) return fail("fewer tokens than were committed");
  if (static_cast<int64_t>(sequence.pages.size()) < layout.pages(length)) return fail("fewer pages than its length");
  if (sequence.phase == StepPhase::kFailed) return Status::ok();  // its caches are refused by any step
  for (size_t l = 0; l < sequence.layers.size(); ++l) {
    const LayerCache& layer = sequence.layers[l];
    const bool may_be_in_flight = sequence.phase == StepPhase::kPrepared;
    const int64_t at = cached_tokens(layer);
    if (at != length && !(may_be_in_flight && (at == kStateInFlight || at == sequence.scheduled()))) {
      return fail(cat("layer ", l, " holds ", at, " tokens, committed are ", length));
    }
    if (const auto* state = std::get_if<KdaState>(&layer)) {
      const LayerSlot& place = layout.layers[l];
      const BlockId block = sequence.state[static_cast<size_t>(place.group)];
      const BlockMeta& meta = pool->meta(block);
      if (meta.kind != BlockKind::kKda || meta.group != place.group || meta.ref != 1 || meta.is_named ||
          state->recurrent != pool->slot(block, place.slot)) {
        return fail(cat("layer ", l, ": its running state is not a block of its own"));
      }
      if (at == length && (meta.valid_tokens != length || meta.version != state->state_version)) {
        return fail(cat("layer ", l, ": its block is at ", meta.valid_tokens, " tokens and version ", meta.version,
                        ", the view at version ", state->state_version));
      }
    } else {
      for (size_t p = 0; p < sequence.pages.size(); ++p) {
        if (sequence.page_tables[l][p] != pool->slot(sequence.pages[p], layout.layers[l].slot)) {
          return fail(cat("layer ", l, ": page ", p, " of its table is another block"));
        }
      }
    }
  }
  for (int64_t p = 0; p < layout.pages(length); ++p) {
    const BlockMeta& meta = pool->meta(sequence.pages[static_cast<size_t>(p)]);
    const int64_t rows = std::min(length - p * layout.cache.page_tokens, layout.cache.page_tokens);
    if (meta.kind != BlockKind::kMla || meta.valid_tokens != rows) {
      return fail(cat("page ", p, " has ", meta.valid_tokens, " valid rows, expected ", rows));
    }
    if (meta.ref > 1 && rows < layout.cache.page_tokens) return fail(cat("page ", p, " is shared and still written"));
  }
  return Status::ok();
}

Status HybridCache::Impl::audit_names() const {
  TANDEM_RETURN_IF_ERROR(index.audit());
  std::vector<bool> is_named(static_cast<size_t>(pool->num_blocks()) + 1, false);
  for (const BlockId block : index.named_blocks()) {
    const BlockMeta& meta = pool->meta(block);
    if (!meta.is_named || meta.kind != BlockKind::kMla || meta.valid_tokens < layout.hash_unit) {
      return Status::failed_precondition(cat("I4: the index names block ", block.value, ", which holds no latents"));
    }
    is_named[static_cast<size_t>(block.value)] = true;
  }
  for (const auto& [id, stored] : store.all()) {
    for (const BlockId block : stored.blocks) is_named[static_cast<size_t>(block.value)] = true;
  }
  for (int32_t id = 1; id <= pool->num_blocks(); ++id) {
    if (pool->meta(BlockId(id)).is_named != is_named[static_cast<size_t>(id)]) {
      return Status::failed_precondition(
          cat("I4: block ", id, is_named[static_cast<size_t>(id)] ? " is named and does not know" : " lost its name"));
    }
  }
  int64_t held = 0;
  for (const auto& [id, sequence] : sequences) {
    held += static_cast<int64_t>(sequence->nodes.size()) + (sequence->root != nullptr ? 1 : 0);
  }
  if (held != index.num_held()) {
    return Status::failed_precondition(cat("I6: sequences hold ", held, " nodes, the index counts ", index.num_held()));
  }
  return Status::ok();
}

Status HybridCache::Impl::audit_checkpoints(bool deep) const {
  std::vector<CheckpointId> named = index.named_checkpoints();
  if (static_cast<int64_t>(named.size()) != store.size()) {
    return Status::failed_precondition(
        cat("I5: the index names ", named.size(), " checkpoints, ", store.size(), " are stored"));
  }
  for (const CheckpointId id : named) {
    const StoredCheckpoint* stored = store.find(id);
    if (stored == nullptr) return Status::failed_precondition(cat("I5: checkpoint ", id.value, " is not stored"));
    for (size_t g = 0; g < stored->blocks.size(); ++g) {
      const BlockMeta& meta = pool->meta(stored->blocks[g]);
      if (meta.kind != BlockKind::kKda || meta.group != static_cast<int32_t>(g) || meta.checkpoint != id ||
          !meta.is_named || meta.valid_tokens != stored->position || meta.version != stored->versions[g]) {
        return Status::failed_precondition(
            cat("I5: checkpoint ", id.value, ": block ", stored->blocks[g].value, " of group ", g, " is not its own"));
      }
    }
    if (deep) TANDEM_RETURN_IF_ERROR(store.verify(id, stored->position, stored->chain));
  }
  return Status::ok();
}

Status HybridCache::Impl::audit(bool deep) const {
  TANDEM_RETURN_IF_ERROR(pool->audit(known_uses()));
  for (const auto& [id, sequence] : sequences) TANDEM_RETURN_IF_ERROR(audit_sequence(*sequence));
  TANDEM_RETURN_IF_ERROR(audit_names());
  return audit_checkpoints(deep);
}

}  // namespace tandem
