// base/arena.h: bump allocation for the scratch of one step. Memory is given back all at once by reset(); the
// blocks are kept, so a warm step allocates nothing. Large blocks lie in huge pages where the system has them: a head's
// part of every row of a prefill is on a page of its own. Not thread-safe: engine thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "base/check.h"

namespace tandem {

class Arena {
 public:
  static constexpr size_t kAlignment = 64;

  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Uninitialised memory for `count` elements, 64-byte aligned, valid until reset() or release() below its mark.
  template <class T>
  std::span<T> alloc(int64_t count) {
    static_assert(std::is_trivially_destructible_v<T>);
    TANDEM_CHECK(count >= 0 && count <= INT64_MAX / static_cast<int64_t>(sizeof(T)), "an arena allocation's size");
    return {static_cast<T*>(alloc_bytes(static_cast<size_t>(count) * sizeof(T))), static_cast<size_t>(count)};
  }

  struct Mark {
    size_t block = 0;
    size_t used = 0;
  };
  Mark mark() const { return {current_, current_ < blocks_.size() ? blocks_[current_].used : 0}; }
  void release(Mark mark);  // frees everything allocated after mark()
  void reset() { release(Mark{}); }

  size_t capacity_bytes() const;
  size_t peak_bytes() const { return peak_; }  // most that was in use at once, since construction

 private:
  struct AlignedDelete {
    size_t alignment;
    void operator()(std::byte* p) const;
  };
  struct Block {
    std::unique_ptr<std::byte[], AlignedDelete> memory;
    size_t size = 0;
    size_t used = 0;
    size_t before = 0;  // in use in the blocks before it
  };

  void* alloc_bytes(size_t bytes);
  void enter_next_block();

  std::vector<Block> blocks_;
  size_t current_ = 0;
  size_t peak_ = 0;
};

// Gives back, at the end of a scope, what the scope allocated.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.release(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

}  // namespace tandem
