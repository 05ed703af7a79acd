// cache/block_pool.h: the memory of all caches: equal blocks with a use count, one free list for both kinds.
//
//   free       nobody uses it and nothing names it: handed out first
//   in use     ref > 0: by sequences, pins of a hit, states being written; never evicted, never given to another
//   cached     ref = 0 and named by the prefix index: evictable, oldest use first
//
//   Block 0 is the null block: it has no memory (touching its address faults), is never handed out and never freed.
//   A block is scrubbed before it is handed out again, and only what its last user dirtied. With `poison` it then holds
//   a NaN pattern instead of zeros, until written.
//   The pool knows nothing of prefixes: who evicts takes the names away first (set_named). Threading: engine thread
//   only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "cache/pool_layout.h"

namespace tandem {

enum class BlockKind : uint8_t { kNone, kMla, kKda };

// kFilling: its rows or its state are being written. kReady: named, what the name promises is written. kUnnamed: was
// ready and lost its name while in use; goes to the free list with its last user.
enum class BlockPhase : uint8_t { kFree, kFilling, kReady, kUnnamed };

struct BlockMeta {
  int32_t ref = 0;
  BlockKind kind = BlockKind::kNone;
  BlockPhase phase = BlockPhase::kFree;
  bool is_named = false;
  bool is_poisoned = false;  // all of its memory was filled with the pattern once
  int32_t group = 0;         // of KDA layers
  uint64_t serial = 0;       // of this tenancy: tells it from earlier ones of the same block
  uint64_t recency = 0;      // when its last user left
  uint64_t version = 0;      // KDA: as KdaState::state_version
  int64_t valid_tokens = 0;  // MLA: rows written and committed. KDA: position of the state
  int64_t dirty_bytes = 0;   // of each of the first dirty_slots, from its start
  int64_t dirty_slots = 0;
  CheckpointId checkpoint;  // KDA and named: its sibling set
  BlockId previous, next;   // in the free list or among the cached; the null block ends a list
};

// A pattern that is a NaN as f32 and as bf16, and that no computation of ours makes from numbers.
inline constexpr uint16_t kPoison = 0x7fd1;

class BlockPool {
 public:
  // kResourceExhausted when the address space is refused; memory itself is committed at first touch.
  static Result<std::unique_ptr<BlockPool>> create(const PoolLayout& layout, int64_t num_blocks, bool poison);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  int64_t num_blocks() const { return num_blocks_; }  // without the null block
  int64_t num_free() const { return free_.size; }
  int64_t num_cached() const { return cached_.size; }
  int64_t num_in_use(BlockKind kind) const { return in_use_[static_cast<size_t>(kind)]; }
  int64_t num_available() const { return free_.size + cached_.size; }

  // A free block with one use, scrubbed, or none. Caller evicts to make one free.
  std::optional<BlockId> allocate(BlockKind kind, int32_t group);
  void add_use(BlockId block);
  void drop_use(BlockId block);  // the last one sends it to the cached (newest) or the free
  void set_named(BlockId block, bool is_named);

  // The cached block whose last use is oldest.
  std::optional<BlockId> oldest_cached() const;
  // Makes a cached block the newest of them; no effect on others.
  void touch(BlockId block);
  void advance_clock() { ++clock_; }

  // [0, bytes) of every slot that the block's kind uses are about to be written.
  void mark_dirty(BlockId block, int64_t bytes);
  void set_valid_tokens(BlockId block, int64_t tokens) { entry(block).valid_tokens = tokens; }
  void set_version(BlockId block, uint64_t version) { entry(block).version = version; }
  void set_checkpoint(BlockId block, CheckpointId checkpoint) { entry(block).checkpoint = checkpoint; }
  const BlockMeta& meta(BlockId block) const { return metas_[index(block)]; }

  std::byte* slot(BlockId block, int64_t slot) const;
  // Fills [begin, end) of every slot that the block's kind uses with zeros, or the pattern.
  void scrub(BlockId block, int64_t begin, int64_t end) { fill(block, slots_in_use(entry(block)), begin, end); }
  void zero(BlockId block, int64_t bytes);                    // [0, bytes) of every slot that the block's kind uses
  int64_t scrubbed_bytes() const { return scrubbed_bytes_; }  // since the start

  // Lists, counts and phases agree; uses are what `uses[block]` says (the owner's count). Names the block.
  Status audit(std::span<const int32_t> uses) const;

 private:
  struct List {
    BlockId head, tail;  // the null block: empty
    int64_t size = 0;
  };
  BlockPool(const PoolLayout& layout, int64_t num_blocks, bool poison, std::byte* memory);
  size_t index(BlockId block) const;
  int64_t slots_in_use(const BlockMeta& m) const;
  void fill(BlockId block, int64_t num_slots, int64_t begin, int64_t end);
  BlockMeta& entry(BlockId block) { return metas_[index(block)]; }
  void push_back(List& list, BlockId block);
  void push_front(List& list, BlockId block);
  void unlink(List& list, BlockId block);
  Status audit_list(const List& list, bool is_named, std::vector<bool>& seen) const;

  PoolLayout layout_;
  int64_t num_blocks_;
  bool poison_;
  std::byte* memory_;  // (num_blocks + 1) · block_bytes, the null block's part inaccessible
  std::vector<BlockMeta> metas_;
  List free_;                           // head: handed out next
  List cached_;                         // head: oldest
  std::array<int64_t, 3> in_use_ = {};  // blocks with a user, by kind: a count is asked for at every step
  uint64_t clock_ = 1;
  uint64_t next_serial_ = 1;
  int64_t scrubbed_bytes_ = 0;
};

}  // namespace tandem
