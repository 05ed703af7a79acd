// A model check of the hybrid cache: every interleaving of admissions, steps, failures, releases and evictions of three
// sequences over a pool that is too small for them, to a depth, on the real thing.
//
//   Two phases   an admission that fails changes nothing; one that succeeds holds the bytes its hit promised, whatever
//                had to be evicted for it
//   Siblings     a checkpoint is whole or gone, after every eviction (I5 in the audit)
//   In flight    what a step has written is never matched before it is committed, and never if it failed
//   A state is a list of actions, replayed on a fresh cache; lists that lead to what cannot be told apart are merged.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <set>

#include "cache/fake_model.h"
#include "cache/pool_layout.h"
#include "support/effort.h"

namespace tandem {
namespace {

using test::fake_layout;
using test::FakeModel;
using Tokens = std::vector<TokenId>;

constexpr int64_t kUnit = 16;
constexpr int kSequences = 3;

enum class Action : uint8_t { kAdmit, kPrepare, kCommit, kAbort, kRelease, kEvictOne, kEvictAll };
struct Move {
  Action action;
  int sequence;
};

// Two identical prompts and one that leaves them after a unit.
Tokens prompt_of(int sequence) {
  Tokens tokens;
  for (int32_t i = 0; i < 2 * kUnit + 1; ++i) tokens.emplace_back(sequence == 2 && i >= kUnit ? 50 + i : i);
  return tokens;
}

class World {
 public:
  explicit World(std::string_view kinds, int64_t num_blocks) : layout_(fake_layout(kinds)), model_(layout_) {
    const HybridCacheOptions options{.hash_unit = kUnit,
                                     .budget_bytes = num_blocks * block_bytes(layout_),
                                     .checkpoint_interval = kUnit,
                                     .identity = "states"};
    cache_ = HybridCache::create(layout_, options).value();
    for (int s = 0; s < kSequences; ++s) prompts_[static_cast<size_t>(s)] = prompt_of(s);
  }
  static int64_t block_bytes(const CacheLayout& layout) {
    return make_pool_layout(layout, kUnit, std::nullopt).value().block_bytes();
  }

  std::vector<Move> moves() const {
    std::vector<Move> moves;
    for (int s = 0; s < kSequences; ++s) {
      const One& one = ones_[static_cast<size_t>(s)];
      if (one.phase == Phase::kIdle) {
        moves.push_back({Action::kAdmit, s});
        continue;
      }
      if (one.phase == Phase::kRunning && length(s) < static_cast<int64_t>(prompt(s).size())) {
        moves.push_back({Action::kPrepare, s});
      }
      if (one.phase == Phase::kWritten) {
        moves.push_back({Action::kCommit, s});
        moves.push_back({Action::kAbort, s});
      }
      moves.push_back({Action::kRelease, s});
    }
    if (cache_->stats().evictable_blocks > 0) {
      moves.push_back({Action::kEvictOne, 0});
      moves.push_back({Action::kEvictAll, 0});
    }
    return moves;
  }

  void apply(const Move& move) {
    One& one = ones_[static_cast<size_t>(move.sequence)];
    const SeqId id(move.sequence);
    switch (move.action) {
      case Action::kAdmit: admit(move.sequence, one); break;
      case Action::kPrepare: {
        const int64_t done = cache_->length(id);
        const int64_t count = std::min<int64_t>(kUnit, static_cast<int64_t>(prompt(move.sequence).size()) - done);
        if (!cache_->prepare_step(id, count)) break;
        good_ = good_ && model_.holds(cache_->view(id), prompt(move.sequence), done);
        model_.run(cache_->view(id), cache_->captures(id), prompt(move.sequence), done, count);
        one = {.phase = Phase::kWritten, .count = count};
        break;
      }
      case Action::kCommit: {
        const int64_t done = cache_->length(id);
        good_ =
            good_ &&
            cache_
                ->commit_step(
                    id,
                    std::span(prompt(move.sequence)).subspan(static_cast<size_t>(done), static_cast<size_t>(one.count)))
                .is_ok();
        one.phase = Phase::kRunning;
        for (int64_t b = kUnit; b <= cache_->length(id); b += kUnit) {
          committed_.insert(Tokens(prompt(move.sequence).begin(), prompt(move.sequence).begin() + b));
        }
        order_.push_back('c');
        order_.push_back(static_cast<char>('0' + move.sequence));
        break;
      }
      case Action::kAbort:
        cache_->abort_step(id);
        one.phase = Phase::kFailed;
        break;
      case Action::kRelease:
        cache_->release(id);
        one.phase = Phase::kIdle;
        order_.push_back('r');
        order_.push_back(static_cast<char>('0' + move.sequence));
        break;
      case Action::kEvictOne: evict(cache_->stats().free_blocks + 1); break;
      case Action::kEvictAll: evict(cache_->blocks_available()); break;
    }
    if (order_.size() > 8) order_.erase(0, order_.size() - 8);
  }

  // What holds in every state; the message says what does not.
  ::testing::AssertionResult check() const {
    if (!good_) return ::testing::AssertionFailure() << "wrong bytes, or an admission that changed what it must not";
    const Status status = cache_->audit(true);
    if (!status.is_ok()) return ::testing::AssertionFailure() << status.message();
    for (int s = 0; s < kSequences; ++s) {
      Tokens longer = prompt(s);
      longer.emplace_back(1);
      const int64_t hit = cache_->match(longer, {}).hit_tokens;
      if (hit > 0 && !committed_.contains(Tokens(longer.begin(), longer.begin() + hit))) {
        return ::testing::AssertionFailure()
               << "prompt " << s << " matches " << hit << " tokens that are not committed";
      }
    }
    return ::testing::AssertionSuccess();
  }

  std::string fingerprint() const {
    const HybridCacheStats stats = cache_->stats();
    std::string text =
        cat(stats.free_blocks, ",", stats.evictable_blocks, ",", stats.checkpoints, ",", stats.indexed_units, ",",
            stats.mla_blocks_in_use, ",", stats.kda_blocks_in_use, ";", order_);
    for (int s = 0; s < kSequences; ++s) {
      const One& one = ones_[static_cast<size_t>(s)];
      text += cat(";", static_cast<int>(one.phase), ",", one.phase == Phase::kIdle ? 0 : length(s), ",", one.hit);
      const PrefixMatch match = cache_->match(prompt(s), {});
      text += cat(",", match.hit_tokens, ",", match.matched_tokens);
      for (const int64_t position : match.checkpoints) text += cat(".", position);
    }
    return text;
  }
  int64_t num_hits() const { return cache_->stats().hit_tokens; }
  int64_t num_refused() const { return num_refused_; }
  int64_t num_evicted() const { return cache_->stats().evicted_blocks; }

 private:
  enum class Phase : uint8_t { kIdle, kRunning, kWritten, kFailed };
  struct One {
    Phase phase = Phase::kIdle;
    int64_t count = 0;
    int64_t hit = 0;
  };
  const Tokens& prompt(int s) const { return prompts_[static_cast<size_t>(s)]; }
  int64_t length(int s) const { return cache_->length(SeqId(s)); }

  void admit(int s, One& one) {
    const HybridCacheStats before = cache_->stats();
    const int64_t expected = cache_->match(prompt(s), {}).hit_tokens;
    const bool is_alone = std::all_of(ones_.begin(), ones_.end(), [](const One& o) { return o.phase == Phase::kIdle; });
    const auto match = cache_->admit(SeqId(s), prompt(s), {}, kUnit);
    if (match) {
      good_ = good_ && (match->hit_tokens == expected || is_alone);
      one = {.phase = Phase::kRunning, .count = 0, .hit = match->hit_tokens};
      return;
    }
    ++num_refused_;
    const HybridCacheStats after = cache_->stats();
    good_ = good_ && !is_alone && before.free_blocks == after.free_blocks &&
            before.evictable_blocks == after.evictable_blocks && before.checkpoints == after.checkpoints &&
            before.indexed_units == after.indexed_units && before.evicted_blocks == after.evicted_blocks;
  }

  // Somebody else takes `count` blocks and is gone again.
  void evict(int64_t count) {
    const int64_t fixed = cache_->blocks_needed(0, 0);
    if (count < fixed) return;
    const SeqId other(100);
    if (cache_->admit(other, Tokens(1, TokenId(1)), {}, (count - fixed) * cache_->layout().page_tokens, false)) {
      cache_->release(other);
    }
  }

  CacheLayout layout_;
  FakeModel model_;
  std::unique_ptr<HybridCache> cache_;
  std::array<Tokens, kSequences> prompts_;
  std::array<One, kSequences> ones_;
  std::set<Tokens> committed_;
  std::string order_;  // of the last commits and releases: what eviction goes by
  bool good_ = true;
  int64_t num_refused_ = 0;
};

std::string describe(const std::vector<Move>& path) {
  const char* names[] = {"admit", "prepare", "commit", "abort", "release", "evict one", "evict all"};
  std::string text;
  for (const Move& move : path) text += cat(names[static_cast<size_t>(move.action)], " ", move.sequence, ", ");
  return text;
}

void explore(std::string_view kinds, int64_t num_blocks, size_t depth, size_t least_states) {
  SCOPED_TRACE(cat(kinds, ", ", num_blocks, " blocks"));
  std::set<std::string> seen;
  std::deque<std::vector<Move>> open = {{}};
  int64_t hits = 0;
  int64_t evicted = 0;
  int64_t refused = 0;
  size_t deepest = 0;
  while (!open.empty()) {
    const std::vector<Move> path = std::move(open.front());
    open.pop_front();
    World world(kinds, num_blocks);
    for (const Move& move : path) world.apply(move);
    ASSERT_TRUE(world.check()) << describe(path);
    hits += world.num_hits() > 0 ? 1 : 0;
    evicted += world.num_evicted() > 0 ? 1 : 0;
    refused += world.num_refused();
    deepest = std::max(deepest, path.size());
    if (path.size() == depth || !seen.insert(world.fingerprint()).second) continue;
    for (const Move& move : world.moves()) {
      std::vector<Move> next = path;
      next.push_back(move);
      open.push_back(std::move(next));
    }
  }
  EXPECT_EQ(deepest, depth);
  EXPECT_GE(seen.size(), static_cast<size_t>(test::effort(static_cast<int64_t>(least_states))));
  EXPECT_GT(hits, 0);
  EXPECT_GT(evicted, 0);
  EXPECT_GT(refused, 0);  // admissions without room
}

constexpr size_t kDepth = test::effort(10) == 10 ? 8 : 7;

TEST(HybridCacheStates, TwoKdaGroups) {
  explore("kkm", 6, kDepth, 500);
  explore("kkm", 8, kDepth, 1000);
}
TEST(HybridCacheStates, OneKdaGroup) { explore("km", 5, kDepth, 1000); }
TEST(HybridCacheStates, StatesAlone) { explore("kk", 2, kDepth, 200); }

}  // namespace
}  // namespace tandem
