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

  // Starts on the longest hit with room for `room_tokens` more tokens: the hit pinned in all groups, then the rest
  // allocated, or nothing done. With share_prefix false it takes nothing from others, so that a sequence alone fits
  // whenever blocks_needed(its length, 0) does.
  virtual std::optional<PrefixMatch> admit(SeqId id, std::span<const TokenId> tokens, const CacheScope& scope,
                                           int64_t room_tokens, bool share_prefix) = 0;
  // Room for a step's rows. May be called again, for fewer rows, after a refusal.
  virtual bool prepare_step(SeqId id, int64_t num_tokens) = 0;
  virtual void release(SeqId id) = 0;  // also with a step prepared, and after one that failed
  virtual bool fork(SeqId from, SeqId to) = 0;

  // kDone: it holds blocks again, and the swapped copy is gone. kLost: what the copy counted on was evicted; it stays
  // until drop_swapped(), and the sequence is computed again.
  enum class SwapIn { kDone, kNoRoom, kLost };
  virtual int64_t swap_bytes(SeqId id) const = 0;
  virtual bool swap_out(SeqId id) = 0;  // also releases; false: the swap space is full
  virtual SwapIn swap_in(SeqId id, int64_t room_tokens) = 0;
  virtual void drop_swapped(SeqId id) = 0;
};

}  // namespace tandem
