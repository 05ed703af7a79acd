// tests/sched/fake_memory.h: the memory of sequences without bytes: states of `state_blocks` each, pages of
// `page_tokens` for a block, an index of full pages and of checkpoints, eviction, a swap space. It finds fault with
// whoever breaks the contract of sched/sequence_memory.h: problem() says the first one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "sched/sequence_memory.h"

namespace tandem::test {

struct FakeMemoryOptions {
  int64_t total_blocks = 64;
  int64_t page_tokens = 16;
  int64_t state_blocks = 1;
  int64_t swap_bytes = INT64_MAX;  // room of the swap space; a block is 1000 bytes
  bool share_prefixes = true;
};

class FakeMemory final : public SequenceMemory {
 public:
  explicit FakeMemory(const FakeMemoryOptions& options);

  PrefixMatch match(std::span<const TokenId> tokens, const CacheScope& scope) const override;
  int64_t blocks_needed(int64_t tokens, int64_t hit_tokens) const override;
  int64_t blocks_available() const override;
  int64_t blocks_total() const override { return options_.total_blocks; }
  std::optional<PrefixMatch> admit(SeqId id, std::span<const TokenId> tokens, const CacheScope& scope,
                                   int64_t room_tokens, bool share_prefix) override;
  bool prepare_step(SeqId id, int64_t num_tokens) override;
  void release(SeqId id) override;
  bool fork(SeqId from, SeqId to) override;
  int64_t swap_bytes(SeqId id) const override;
  bool swap_out(SeqId id) override;
  SwapIn swap_in(SeqId id, int64_t room_tokens) override;
  void drop_swapped(SeqId id) override;

  // The engine's side: the prepared step ran over these tokens, or it failed.
  void commit(SeqId id, std::span<const TokenId> tokens);
  void abort(SeqId id);

  // Another user of the pool.
  bool hold(int64_t blocks);
  void give_back_held();
  void evict_all();               // everything nobody uses
  int64_t refuse_admissions = 0;  // the next so many

  int64_t num_sequences() const { return static_cast<int64_t>(sequences_.size()); }
  int64_t num_swapped() const { return static_cast<int64_t>(swapped_.size()); }
  int64_t length(SeqId id) const;  // committed
  bool holds(SeqId id) const { return sequences_.contains(id.value); }
  bool has_swapped(SeqId id) const { return swapped_.contains(id.value); }
  std::string problem() const;  // empty: none; audits the pool too

 private:
  struct Page {
    int64_t users = 0;
    uint64_t key = 0;  // 0: not in the index
    bool is_free = true;
  };
  struct Held {
    int64_t length = 0;
    int64_t prepared = 0;  // rows; 0: none
    bool is_aborted = false;
    bool share_prefix = true;
    uint64_t salt = 0;
    std::vector<int32_t> pages;
  };
  struct Swapped {
    Held held;                   // no pages
    std::vector<uint64_t> keys;  // of the leading pages, which were left in the index
  };
  struct Hit {
    std::vector<int32_t> pages;
    uint64_t checkpoint = 0;
  };

  static uint64_t extend(uint64_t key, std::span<const TokenId> tokens);
  uint64_t root(const CacheScope& scope) const;
  Hit find(std::span<const TokenId> tokens, uint64_t salt) const;
  int64_t pages_of(int64_t tokens) const { return (tokens + options_.page_tokens - 1) / options_.page_tokens; }
  int64_t free_blocks() const;
  bool make_free(int64_t blocks, uint64_t pinned_checkpoint);
  void grow(Held& held, int64_t tokens);
  bool make_room(Held& held, int64_t tokens, int64_t extra_blocks, uint64_t pinned_checkpoint);
  void drop_page(int32_t page);
  void blame(const std::string& what);
  Held& at(SeqId id, const char* who);

  FakeMemoryOptions options_;
  std::vector<Page> pages_;  // as many as blocks
  std::vector<int32_t> free_pages_;
  int64_t used_pages_ = 0;    // with users
  int64_t cached_pages_ = 0;  // without, in the index
  int64_t held_blocks_ = 0;
  std::unordered_map<uint64_t, int32_t> index_;        // chained key of a page → page
  std::unordered_map<uint64_t, int64_t> checkpoints_;  // keys of page ends with a state; the value is its age
  int64_t clock_ = 0;
  std::unordered_map<int32_t, Held> sequences_;
  std::unordered_map<int32_t, Swapped> swapped_;
  int64_t swap_used_ = 0;
  std::string problem_;
};

}  // namespace tandem::test
