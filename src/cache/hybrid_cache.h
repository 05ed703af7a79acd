// cache/hybrid_cache.h: the memory of all sequences: one pool of equal blocks for KDA states and MLA latents, the index
// of prefixes that can be shared, and the sequences that hold blocks now.
//
//   A prefix is reusable where both kinds agree: latents of every MLA layer for [0, b) and a KDA state of every group
//   at exactly b, b a multiple of hash_unit. docs/cache.md draws the life of a prefix, a page and a state; ADR 0009
//   says why it is built so. Source: systems.md §1–2; the invariants I1–I6 of §1.6 are audit()'s.
//
//   Life of a sequence   admit → (prepare_step → the model runs the views → commit_step | abort_step)* → release
//   Errors               a lack of blocks is an ordinary outcome (false, nothing changed), never an error
//   Threading            engine thread only
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "cache/cache_layout.h"
#include "cache/layer_cache.h"
#include "cache/prefix_index.h"
#include "cache/prefix_match.h"

namespace tandem {

inline constexpr int64_t kDefaultHashUnit = 128;

struct HybridCacheOptions {
  int64_t hash_unit = kDefaultHashUnit;        // tokens; a multiple of kKdaChunk (16)
  int64_t budget_bytes = 0;                    // of all blocks together
  std::optional<int64_t> num_kda_groups = {};  // none: as many as MLA layers fit under one column
  int64_t checkpoint_interval = 32768;         // tokens, a multiple of hash_unit; 0: no checkpoints at an interval
  int64_t checkpoints_per_chain = 4;           // kept for one conversation
  std::optional<TokenId> message_end = {};     // the token that ends a message: turn boundaries are found by it
  std::string identity = {};                   // model, tokenizer: part of every hash
  bool share_prefixes = true;                  // false: nothing is indexed, every prompt is computed
  bool share_generated = true;  // false: only units of the admitted prompt are indexed, nothing behind it
  bool poison = false;          // unwritten slots hold NaN patterns, looked for before anything is shared
};

// A state the step in flight is to write on its way: StepPlan's StateCapture with `view` as its cache.
struct PlannedCapture {
  int64_t num_tokens = 0;  // of this step's rows
  SequenceCacheView view;
};

// Where the tokens of a preempted sequence are kept: exact KDA states, and the latents that no shared block holds.
class SwappedSequence;

struct HybridCacheStats {
  int64_t block_bytes = 0;
  int64_t num_blocks = 0;        // without the null block
  int64_t free_blocks = 0;       // without a key
  int64_t evictable_blocks = 0;  // cached, no user
  int64_t mla_blocks_in_use = 0;
  int64_t kda_blocks_in_use = 0;
  int64_t checkpoints = 0;  // that a prompt can hit
  int64_t indexed_units = 0;
  // Since the start.
  int64_t query_tokens = 0;  // prompt tokens looked up at admission
  int64_t hit_tokens = 0;
  int64_t evicted_blocks = 0;
  int64_t checkpoints_taken = 0;
  int64_t checkpoints_skipped = 0;  // no block was free for them
  int64_t refused_checkpoints = 0;  // did not pass their proof when they were to be used; gone since
  int64_t refused_non_finite = 0;  // sequences whose latents or states were not numbers: nothing more is shared of them
  int64_t copied_bytes = 0;        // restores, copy-on-write, forks, swaps
  int64_t scrubbed_bytes = 0;
};

struct SequenceBytes {     // resident, by kind
  int64_t kda_state = 0;   // recurrent matrices and conv history
  int64_t mla_latent = 0;  // blocks of its own and shared ones
  int64_t padding = 0;     // of the blocks: not written or not used
};

class HybridCache {
 public:
  // kInvalidArgument names the option; kResourceExhausted when the budget does not hold one sequence.
  // layout.page_tokens is not used: the page is computed (make_pool_layout in cache/pool_layout.h).
  static Result<std::unique_ptr<HybridCache>> create(const CacheLayout& layout, const HybridCacheOptions& options);
  ~HybridCache();
  HybridCache(const HybridCache&) = delete;
  HybridCache& operator=(const HybridCache&) = delete;

  // What admit() would find. Changes nothing.
  PrefixMatch match(std::span<const TokenId> tokens, const CacheScope& scope) const;

  // Blocks that a sequence of `tokens` tokens needs beyond a hit of `hit_tokens`, over all groups.
  int64_t blocks_needed(int64_t tokens, int64_t hit_tokens) const;
  int64_t blocks_available() const;  // free and evictable

  // Starts sequence `id` on the longest hit, with room for `room_tokens` more: pins the hit in all groups, then
  // allocates, then copies the KDA states and the rows of a partial page. Nothing when blocks are short. With
  // share_prefix false the sequence neither takes from the index nor adds to it (verification).
  std::optional<PrefixMatch> admit(SeqId id, std::span<const TokenId> prompt, const CacheScope& scope,
                                   int64_t room_tokens, bool share_prefix = true);

  // Before a step of `num_tokens` rows: room in every MLA layer and slots for the checkpoints wanted on the way (left
  // out when no block is free for them). False: no room, nothing changed.
  bool prepare_step(SeqId id, int64_t num_tokens);
  // Valid from prepare_step() to commit_step() or abort_step().
  SequenceCacheView view(SeqId id);
  std::span<const PlannedCapture> captures(SeqId id) const;

  // The model ran `tokens`: they become part of the sequence; whole units and written checkpoints become matchable, for
  // admissions after this call. kFailedPrecondition when the caches disagree with what was planned.
  Status commit_step(SeqId id, std::span<const TokenId> tokens);
  // The step failed: nothing of it can be matched, and the sequence can only be released.
  void abort_step(SeqId id);

  // Speculation: a window of rows whose commit point is known afterwards. Slots for states at two positions of the
  // step: prepare_window() plans captures at `boundary` (0: none) and `commit` rows; commit_window() keeps the first
  // `accepted` of the tokens, which must be the whole window or its commit capture, and cuts the latents there.
  bool prepare_window(SeqId id, int64_t num_tokens, int64_t commit);
  Status commit_window(SeqId id, std::span<const TokenId> tokens, int64_t accepted);

  // `to` becomes a copy of `from` (same tokens, states and latents): whole pages shared, the rest copied. False: no
  // blocks.
  bool fork(SeqId from, SeqId to);

  // Ends the sequence: its blocks go back in reverse order; what is indexed stays matchable until evicted.
  void release(SeqId id);

  // Preemption. swap_out() keeps exact states and returns null when `max_bytes` does not hold them; swap_in() gives the
  // sequence back, or false when blocks are short, or when latents it counted on were evicted (then `lost` is set and
  // the swapped copy is useless: recompute).
  std::unique_ptr<SwappedSequence> swap_out(SeqId id, int64_t max_bytes);
  bool swap_in(SeqId id, const SwappedSequence& swapped, int64_t room_tokens, bool& lost);
  int64_t swap_bytes(SeqId id) const;

  // Everything from position `begin` on along `tokens` is unindexed and never matched again by its old blocks.
  void quarantine(std::span<const TokenId> tokens, const CacheScope& scope, int64_t begin);

  int64_t length(SeqId id) const;  // committed tokens
  SequenceBytes bytes(SeqId id) const;
  HybridCacheStats stats() const;
  const CacheLayout& layout() const;  // with the pool's page_tokens

  // I1–I6 over everything, checksums of checkpoints included when `deep`. The error names the invariant and the object.
  Status audit(bool deep) const;

 private:
  struct Impl;
  explicit HybridCache(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

class SwappedSequence {
 public:
  virtual ~SwappedSequence() = default;
  virtual int64_t bytes() const = 0;
  virtual int64_t length() const = 0;
};

}  // namespace tandem
