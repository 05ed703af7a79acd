// cost/arena_model.h: base/arena.h without its memory: what is in use, what its blocks reserve, and what of them is
// touched, and so resident.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/arena.h"

namespace tandem {

inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

class ArenaModel {
 public:
  void alloc(int64_t bytes) {
    bytes = round_up(bytes, static_cast<int64_t>(Arena::kAlignment));
    while (current_ + 1 < blocks_.size() && blocks_[current_].size - blocks_[current_].used < bytes) {
      blocks_[++current_].used = 0;
    }
    if (blocks_.empty() || blocks_[current_].size - blocks_[current_].used < bytes) {
      const int64_t previous = blocks_.empty() ? 0 : blocks_.back().size;
      blocks_.push_back({std::max({bytes, kMinBlockBytes, previous * 2}), 0, 0});
      current_ = blocks_.size() - 1;
    }
    Block& block = blocks_[current_];
    block.used += bytes;
    block.most_used = std::max(block.most_used, block.used);
    in_use_ += bytes;
  }
  void floats(int64_t count) { alloc(count * 4); }

  struct Mark {
    size_t block;
    int64_t used;
    int64_t in_use;
  };
  Mark mark() const { return {current_, blocks_.empty() ? 0 : blocks_[current_].used, in_use_}; }
  void release(Mark mark) {
    if (blocks_.empty()) return;
    current_ = mark.block;
    blocks_[current_].used = mark.used;
    in_use_ = mark.in_use;
  }
  int64_t in_use() const { return in_use_; }
  int64_t reserved() const {
    int64_t total = 0;
    for (const Block& block : blocks_) total += block.size;
    return total;
  }
  // In whole pages: huge ones, where a block is that large.
  int64_t touched() const {
    int64_t total = 0;
    for (const Block& block : blocks_) {
      total += block.size < kHugePageBytes ? block.most_used : round_up(block.most_used, kHugePageBytes);
    }
    return total;
  }

 private:
  static constexpr int64_t kHugePageBytes = int64_t{2} << 20;
  static constexpr int64_t kMinBlockBytes = int64_t{1} << 20;
  struct Block {
    int64_t size;
    int64_t used;
    int64_t most_used;
  };
  std::vector<Block> blocks_;
  size_t current_ = 0;
  int64_t in_use_ = 0;
};

}  // namespace tandem
