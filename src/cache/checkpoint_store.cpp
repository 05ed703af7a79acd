#include "cache/checkpoint_store.h"

#define XXH_STATIC_LINKING_ONLY  // the streaming state on the stack
#include <xxhash.h>

#include <climits>

#include "base/cat.h"
#include "base/check.h"
#include "cache/stored_scan.h"

namespace tandem {
uint64_t CheckpointStore::checksum(int64_t position, const PrefixHash& chain, std::span<const BlockId> blocks) const {
  XXH3_state_t state;
  // Without a seed: a seeded reset trusts what an uninitialised state says of its secret.
  XXH3_64bits_reset(&state);
  XXH3_64bits_update(&state, &position, sizeof(position));
  XXH3_64bits_update(&state, &chain, sizeof(chain));
  for (const BlockId block : blocks) {
    const int64_t num_slots = layout_.kda_layers_in_group(pool_.meta(block).group);
    for (int64_t s = 0; s < num_slots; ++s) {
      XXH3_64bits_update(&state, pool_.slot(block, s), static_cast<size_t>(layout_.state_bytes));
    }
  }
  return XXH3_64bits_digest(&state);
}

bool CheckpointStore::is_finite(std::span<const BlockId> blocks) const {
  const auto recurrent = static_cast<size_t>(layout_.cache.recurrent_bytes());
  const auto conv = static_cast<size_t>(layout_.cache.conv_bytes());
  for (const BlockId block : blocks) {
    const int64_t num_slots = layout_.kda_layers_in_group(pool_.meta(block).group);
    for (int64_t s = 0; s < num_slots; ++s) {
      const std::byte* state = pool_.slot(block, s);
      if (!all_finite({state, recurrent}, layout_.cache.dtype) ||
          !all_finite({state + layout_.conv_offset, conv}, layout_.cache.dtype)) {
        return false;
      }
    }
  }
  return true;
}

std::optional<CheckpointId> CheckpointStore::add(int64_t position, const PrefixHash& chain,
                                                 std::span<const BlockId> blocks) {
  TANDEM_CHECK(static_cast<int64_t>(blocks.size()) == layout_.num_kda_groups, "a block of every group");
  if (!is_finite(blocks)) return std::nullopt;
  do {
    last_id_ = last_id_ == INT_MAX ? 1 : last_id_ + 1;
  } while (checkpoints_.contains(last_id_));
  const CheckpointId id(last_id_);
  StoredCheckpoint& stored = checkpoints_[id.value];
  stored.position = position;
  stored.chain = chain;
  stored.blocks.assign(blocks.begin(), blocks.end());
  for (const BlockId block : blocks) {
    stored.versions.push_back(pool_.meta(block).version);
    pool_.set_valid_tokens(block, position);
    pool_.set_named(block, true);
    pool_.set_checkpoint(block, id);
  }
  stored.checksum = checksum(position, chain, blocks);
  return id;
}

void CheckpointStore::forget(CheckpointId id) {
  const auto found = checkpoints_.find(id.value);
  if (found == checkpoints_.end()) return;
  for (const BlockId block : found->second.blocks) pool_.set_named(block, false);
  checkpoints_.erase(found);
}

const StoredCheckpoint* CheckpointStore::find(CheckpointId id) const {
  const auto found = checkpoints_.find(id.value);
  return found == checkpoints_.end() ? nullptr : &found->second;
}

Status CheckpointStore::verify(CheckpointId id, int64_t position, const PrefixHash& chain) const {
  const StoredCheckpoint* stored = find(id);
  if (stored == nullptr) return Status::failed_precondition(cat("checkpoint ", id.value, ": it is gone"));
  if (stored->position != position) {
    return Status::failed_precondition(cat("checkpoint ", id.value, ": its state is at ", stored->position,
                                           " tokens, a prefix of ", position, " was asked for"));
  }
  if (stored->chain != chain) {
    return Status::failed_precondition(cat("checkpoint ", id.value, ": it was computed from other tokens"));
  }
  for (size_t g = 0; g < stored->blocks.size(); ++g) {
    const BlockMeta& meta = pool_.meta(stored->blocks[g]);
    if (meta.version != stored->versions[g] || meta.valid_tokens != position || meta.checkpoint != id) {
      return Status::failed_precondition(cat("checkpoint ", id.value, ": block ", stored->blocks[g].value, " is at ",
                                             meta.valid_tokens, " tokens and version ", meta.version, ", expected ",
                                             position, " and version ", stored->versions[g]));
    }
  }
  if (checksum(position, chain, stored->blocks) != stored->checksum) {
    return Status::failed_precondition(cat("checkpoint ", id.value, ": its bytes changed since it was stored"));
  }
  return Status::ok();
}

}  // namespace tandem
