// cache/hybrid_cache_impl.h: the parts of the hybrid cache and how they hang together; included by its .cpp files only.
//
//   pool    memory and uses      index   which prefix lies in which block      store   KDA checkpoints and their proofs
//   A block is named in the pool exactly while the index names it (MLA) or the store does (KDA); every loss that the
//   index reports is applied at once, so that no name outlives what it stands for.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/block_pool.h"
#include "cache/cached_sequence.h"
#include "cache/checkpoint_store.h"
#include "cache/hybrid_cache.h"
#include "cache/pool_layout.h"
#include "cache/prefix_index.h"

namespace tandem {

struct HybridCache::Impl {
  Impl(PoolLayout pool_layout, const HybridCacheOptions& cache_options, std::unique_ptr<BlockPool> block_pool);

  // Blocks (hybrid_blocks.cpp).
  BlockId take_block(BlockKind kind, int32_t group);  // evicts as needed; a block is available
  void evict_one();
  void apply(const IndexLoss& loss);
  void drop_checkpoint(CheckpointId id, MissReason why);
  void take_state(std::vector<BlockId>& blocks);  // one of every group
  void drop_uses(std::span<const BlockId> blocks);
  void copy_state(std::span<const BlockId> from, std::span<const BlockId> to);
  void copy_rows(BlockId from, BlockId to, int64_t num_rows);
  std::string identity() const;  // with the caches' type: part of every hash

  // Views (hybrid_blocks.cpp).
  void make_layers(std::vector<LayerCache>& layers) const;
  void point_states(std::vector<LayerCache>& layers, std::span<const BlockId> blocks, int64_t position) const;
  void add_page(CachedSequence& sequence, BlockId block);
  void set_length(CachedSequence& sequence, int64_t length);

  // The index (hybrid_share.cpp).
  void stand_on_nodes(CachedSequence& sequence);
  void leave_nodes(CachedSequence& sequence);
  int64_t shared_end(const CachedSequence& sequence, int64_t end) const;  // of the first `end` tokens
  void publish(CachedSequence& sequence);                                 // every whole unit that is committed
  void store_checkpoint(CachedSequence& sequence, const CaptureSlot& capture, int64_t position);
  bool is_refused(const CachedSequence& sequence) const;  // or it stands on what was quarantined
  bool is_unit_finite(const CachedSequence& sequence, int64_t unit) const;

  // Admission (hybrid_admit.cpp).
  PrefixMatch cold_match(std::span<const TokenId> prompt) const;
  PrefixLookup cold_lookup(std::span<const TokenId> prompt) const;
  Status verify_checkpoint(CheckpointId id, std::span<const TokenId> prefix, const CacheScope& scope) const;
  std::optional<PrefixMatch> admit(SeqId id, std::span<const TokenId> prompt, const CacheScope& scope,
                                   int64_t room_tokens, bool is_shared);
  std::unique_ptr<CachedSequence> start(SeqId id, std::span<const TokenId> prompt, const CacheScope& scope,
                                        bool is_shared, const PrefixLookup& found, int64_t room_tokens);
  void release(SeqId id);
  bool fork(const CachedSequence& from, SeqId to);

  // Steps (hybrid_step.cpp).
  bool prepare(CachedSequence& sequence, int64_t num_tokens, std::optional<int64_t> window_commit);
  void plan_captures(CachedSequence& sequence);
  int64_t growth_reserve() const;
  void cancel_plan(CachedSequence& sequence);
  Status check_step(const CachedSequence& sequence) const;
  Status check_tokens(const CachedSequence& sequence, std::span<const TokenId> tokens) const;
  Status commit(CachedSequence& sequence, std::span<const TokenId> tokens, int64_t accepted);
  void keep_window(CachedSequence& sequence, int64_t accepted);
  void store_captures(CachedSequence& sequence, int64_t before, int64_t accepted);

  // Preemption (hybrid_swap.cpp).
  int64_t swap_bytes(const CachedSequence& sequence) const;
  std::unique_ptr<SwappedSequence> swap_out(CachedSequence& sequence, int64_t max_bytes);
  bool swap_in(SeqId id, const SwappedSequence& swapped, int64_t room_tokens, bool& lost);

  // Proof (hybrid_audit.cpp).
  Status audit(bool deep) const;
  Status audit_sequence(const CachedSequence& sequence) const;
  Status audit_names() const;
  Status audit_checkpoints(bool deep) const;
  std::vector<int32_t> known_uses() const;

  CachedSequence& sequence(SeqId id);
  const CachedSequence& sequence(SeqId id) const;

  const PoolLayout layout;
  const HybridCacheOptions options;
  std::unique_ptr<BlockPool> pool;
  CheckpointStore store;
  PrefixIndex index;
  std::unordered_map<int32_t, std::unique_ptr<CachedSequence>> sequences;
  int64_t num_quarantines = 0;
  HybridCacheStats counts;  // the counters of it
};

}  // namespace tandem
