// sched/sequence_memory.h: the memory of sequences as the scheduler sees it: blocks that are there or not, never a
// tensor.
//
//   A lack of memory is an ordinary outcome: false or nothing, and nothing has changed. Threading: engine thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/ids.h"
#include "cache/prefix_match.h"

namespace tandem {

class SequenceMemory {
 public:
  virtual ~SequenceMemory() = default;

  virtual PrefixMatch match(std::span<const TokenId> tokens, const CacheScope& scope) const = 0;
  virtual int64_t blocks_needed(int64_t tokens, int64_t hit_tokens) const = 0;  // of a sequence of that length
  virtual int64_t blocks_available() const = 0;                                 // free or evictable
  virtual int64_t blocks_total() const = 0;

  // Starts on the longest hit with room for `room_tokens` more tokens.
  virtual std::optional<PrefixMatch> admit(SeqId id, std::span<const TokenId> tokens, const CacheScope& scope,
                                           int64_t room_tokens, bool share_prefix) = 0;
  virtual bool prepare_step(SeqId id, int64_t num_tokens) = 0;  // room for a step's rows
  virtual void release(SeqId id) = 0;
  virtual bool fork(SeqId from, SeqId to) = 0;

  enum class SwapIn { kDone, kNoRoom, kLost };  // kLost: what it counted on was evicted; compute it again
  virtual int64_t swap_bytes(SeqId id) const = 0;
  virtual bool swap_out(SeqId id) = 0;  // also releases; false: the swap space is full
  virtual SwapIn swap_in(SeqId id, int64_t room_tokens) = 0;
  virtual void drop_swapped(SeqId id) = 0;
};

}  // namespace tandem
