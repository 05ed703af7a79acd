// cache/checkpoint_store.h: stored KDA states: one block of each KDA group, written once and then only copied from.
//
//   A checkpoint is bound to what it was computed from: its position, a chained 128-bit key of all tokens before it,
//   the versions of its blocks, and a checksum of its payload. All are checked before it is used; what fails is never
//   served. Threading: engine thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "cache/block_pool.h"
#include "cache/prefix_hash.h"

namespace tandem {

struct StoredCheckpoint {
  int64_t position = 0;
  PrefixHash chain;                // of all tokens before it
  std::vector<BlockId> blocks;     // by KDA group
  std::vector<uint64_t> versions;  // of the blocks when it was stored
  uint64_t checksum = 0;
  int64_t num_hits = 0;  // sequences that resumed from it
};

class CheckpointStore {
 public:
  CheckpointStore(const PoolLayout& layout, BlockPool& pool) : layout_(layout), pool_(pool) {}

  // Names the blocks, whose states are at `position`; the caller keeps and later drops its use of them. None when the
  // states are not finite: such a state is never shared.
  std::optional<CheckpointId> add(int64_t position, const PrefixHash& chain, std::span<const BlockId> blocks);
  // Takes the blocks' names away: those without a user become free. No effect when it is gone already.
  void forget(CheckpointId id);

  void count_hit(CheckpointId id) { ++checkpoints_.at(id.value).num_hits; }
  const StoredCheckpoint* find(CheckpointId id) const;
  // OK, or what is wrong with using it for a prefix of `position` tokens with this key. Reads the whole payload.
  Status verify(CheckpointId id, int64_t position, const PrefixHash& chain) const;
  int64_t size() const { return static_cast<int64_t>(checkpoints_.size()); }
  const std::unordered_map<int32_t, StoredCheckpoint>& all() const { return checkpoints_; }

 private:
  uint64_t checksum(int64_t position, const PrefixHash& chain, std::span<const BlockId> blocks) const;
  bool is_finite(std::span<const BlockId> blocks) const;

  const PoolLayout& layout_;
  BlockPool& pool_;
  std::unordered_map<int32_t, StoredCheckpoint> checkpoints_;
  int32_t last_id_ = 0;
};

}  // namespace tandem
