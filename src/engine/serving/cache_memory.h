// engine/serving/cache_memory.h: the hybrid cache as the scheduler's memory of sequences, and where swapped ones stay.
//
//   Blocks that somebody holds for a purpose of lower rank (verification) count as available: when the cache has none
//   left, that holder is asked to give its own back, and the call is tried again. Threading: engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "cache/hybrid_cache.h"
#include "sched/sequence_memory.h"

namespace tandem {

// Holds blocks that the sequences of requests may claim at any time.
class BlockLender {
 public:
  virtual ~BlockLender() = default;
  virtual int64_t lent_blocks() const = 0;
  virtual bool give_back() = 0;  // false: it held none
};

class CacheMemory final : public SequenceMemory {
 public:
  // Borrows the cache; it outlives this.
  CacheMemory(HybridCache& cache, int64_t swap_bytes) : cache_(cache), swap_limit_bytes_(swap_bytes) {}
  void set_lender(BlockLender* lender) { lender_ = lender; }  // may be null

  PrefixMatch match(std::span<const TokenId> tokens, const CacheScope& scope) const override;
  int64_t blocks_needed(int64_t tokens, int64_t hit_tokens) const override;
  int64_t blocks_available() const override;
  int64_t blocks_total() const override;
  std::optional<PrefixMatch> admit(SeqId id, std::span<const TokenId> tokens, const CacheScope& scope,
                                   int64_t room_tokens, bool share_prefix) override;
  bool prepare_step(SeqId id, int64_t num_tokens) override;
  void release(SeqId id) override;
  bool fork(SeqId from, SeqId to) override;
  int64_t swap_bytes(SeqId id) const override;
  bool swap_out(SeqId id) override;
  SwapIn swap_in(SeqId id, int64_t room_tokens) override;
  void drop_swapped(SeqId id) override;

  SequenceBytes resident_bytes() const;  // of the sequences admitted here

 private:
  bool reclaim() { return lender_ != nullptr && lender_->give_back(); }

  HybridCache& cache_;
  BlockLender* lender_ = nullptr;
  int64_t swap_limit_bytes_ = 0;
  int64_t swapped_bytes_ = 0;
  std::unordered_map<int32_t, std::unique_ptr<SwappedSequence>> swapped_;
  std::unordered_set<int32_t> resident_;
};

}  // namespace tandem
