// The hybrid cache under random families of conversations: hits against a brute-force oracle while nothing is evicted,
// every byte and every invariant while everything is (small budgets, swaps, forks, windows, failures, quarantines).
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "cache/cached_sequence.h"
#include "cache/fake_model.h"
#include "support/effort.h"

namespace tandem {
namespace {

using test::fake_layout;
using test::FakeModel;
using Tokens = std::vector<TokenId>;

Tokens prefix_of(const Tokens& tokens, int64_t length) { return {tokens.begin(), tokens.begin() + length}; }

// Prompts that share stems with what was said before, cut near the strides that matter.
class Family {
 public:
  Family(uint64_t seed, int64_t unit, int64_t page, int64_t longest)
      : random_(seed), unit_(unit), page_(page), longest_(longest) {}
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  bool one_in(int64_t n) { return below(n) == 0; }

  Tokens next_prompt() {
    Tokens prompt;
    if (!said_.empty() && !one_in(6)) {
      const Tokens& stem = said_[static_cast<size_t>(below(static_cast<int64_t>(said_.size())))];
      const auto length = static_cast<int64_t>(stem.size());
      int64_t cut = one_in(3) ? length : below(length + 1);
      const int64_t strides[] = {1, 16, unit_, page_};
      const int64_t stride = strides[below(4)];
      if (one_in(2)) cut = cut / stride * stride + below(3) - 1;
      prompt = prefix_of(stem, std::clamp<int64_t>(cut, 0, length));
    }
    // Few different tokens, so that branches meet again by chance too.
    const int64_t more = one_in(4) ? (prompt.empty() ? 1 : 0) : 1 + below(longest_ / 2);
    extend(prompt, std::max<int64_t>(more, prompt.empty() ? 1 : 0));
    if (static_cast<int64_t>(prompt.size()) > longest_) prompt.resize(static_cast<size_t>(longest_));
    return prompt;
  }
  void extend(Tokens& tokens, int64_t count) {
    const auto kind = static_cast<int32_t>(below(3));
    for (int64_t i = 0; i < count; ++i) {
      tokens.emplace_back(one_in(12) ? kMessageEnd : 1 + (static_cast<int32_t>(tokens.size()) * kind) % 7);
    }
  }
  void said(Tokens tokens) {
    if (tokens.empty()) return;
    said_.push_back(std::move(tokens));
    if (said_.size() > 24) said_.erase(said_.begin() + below(24));
  }
  static constexpr int32_t kMessageEnd = 60;

 private:
  std::mt19937_64 random_;
  int64_t unit_, page_, longest_;
  std::vector<Tokens> said_;
};

// What could be resumed from if nothing were ever forgotten, by looking at every prefix.
class Oracle {
 public:
  struct Sequence {
    Tokens tokens;
    int64_t committed = 0;
    int64_t prompt_tokens = 0;
    std::vector<WantedCheckpoint> wanted;
    std::optional<std::pair<Tokens, int64_t>> rolling;  // prefix, and which state of it
  };
  Oracle(int64_t unit, bool has_kda, WantedOptions options) : unit_(unit), has_kda_(has_kda), options_(options) {}

  int64_t latent_tokens(const Tokens& tokens) const {
    for (auto b = static_cast<int64_t>(tokens.size()) / unit_ * unit_; b > 0; b -= unit_) {
      if (latents_.contains(prefix_of(tokens, b))) return b;
    }
    return 0;
  }
  int64_t hit(const Tokens& tokens) const {
    for (auto b = (static_cast<int64_t>(tokens.size()) - 1) / unit_ * unit_; b > 0; b -= unit_) {
      const Tokens prefix = prefix_of(tokens, b);
      if (latents_.contains(prefix) && (!has_kda_ || states_.contains(prefix))) return b;
    }
    return 0;
  }
  Sequence admit(const Tokens& prompt) {
    const int64_t found = hit(prompt);
    if (found > 0 && has_kda_) states_[prefix_of(prompt, found)].hits += 1;
    return {.tokens = prompt,
            .committed = found,
            .prompt_tokens = static_cast<int64_t>(prompt.size()),
            .wanted = wanted_checkpoints(prompt, found, latent_tokens(prompt), options_),
            .rolling = {}};
  }
  void commit(Sequence& s, int64_t count) {
    const int64_t begin = s.committed;
    s.committed += count;
    const int64_t last = s.committed / unit_ * unit_;
    for (int64_t b = begin / unit_ * unit_ + unit_; b <= s.committed; b += unit_)
      latents_.insert(prefix_of(s.tokens, b));
    if (last <= begin) return;
    std::map<int64_t, bool> positions;  // and whether it rolls
    positions[last] = true;
    for (const auto& wanted : s.wanted) {
      if (wanted.position > begin && wanted.position <= s.committed) positions[wanted.position] = false;
    }
    for (const auto& [position, is_rolling] : positions) {
      const Tokens prefix = prefix_of(s.tokens, position);
      if (states_.contains(prefix)) continue;
      states_[prefix] = {.serial = ++serial_, .hits = 0};
      if (s.rolling) {
        const auto old = states_.find(s.rolling->first);
        if (old != states_.end() && old->second.serial == s.rolling->second && old->second.hits == 0) {
          states_.erase(old);
        }
      }
      s.rolling.reset();
      if (is_rolling) s.rolling = {prefix, serial_};
    }
  }
  int64_t num_states() const { return static_cast<int64_t>(states_.size()); }

 private:
  struct State {
    int64_t serial = 0;
    int64_t hits = 0;
  };
  int64_t unit_;
  bool has_kda_;
  WantedOptions options_;
  std::set<Tokens> latents_;
  std::map<Tokens, State> states_;
  int64_t serial_ = 0;
};

TEST(HybridCacheFuzz, HitsEqualTheOraclesWhileNothingIsEvicted) {
  const std::vector<std::string> shapes = {"kkkm", "km", "mm", "kkkmkkm"};
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(test::effort(60)); ++seed) {
    const std::string& kinds = shapes[seed % shapes.size()];
    const int64_t unit = seed % 3 == 0 ? 32 : 16;
    const CacheLayout layout = fake_layout(kinds, DType::kF32, seed % 2 == 0 ? 4 : 20);
    const HybridCacheOptions options{.hash_unit = unit,
                                     .budget_bytes = int64_t{1} << 26,
                                     .checkpoint_interval = seed % 5 == 0 ? 2 * unit : 0,
                                     .checkpoints_per_chain = 100000,
                                     .message_end = TokenId(Family::kMessageEnd),
                                     .identity = "fake"};
    auto cache = HybridCache::create(layout, options).value();
    SCOPED_TRACE(cat("seed ", seed, " ", kinds, " unit ", unit, " page ", cache->layout().page_tokens));
    const FakeModel model(layout);
    Family family(seed, unit, cache->layout().page_tokens, 6 * unit + 2);
    Oracle oracle(unit, layout.num_kda_layers() > 0, {unit, options.checkpoint_interval, options.message_end});
    std::map<int32_t, Oracle::Sequence> live;
    int32_t next_id = 1;
    for (int64_t i = 0; i < 150; ++i) {
      if (live.size() < 4 && family.one_in(2)) {
        const Tokens prompt = family.next_prompt();
        ASSERT_EQ(cache->match(prompt, {}).hit_tokens, oracle.hit(prompt));
        const auto match = cache->admit(SeqId(next_id), prompt, {}, 1);
        ASSERT_TRUE(match.has_value());
        live[next_id] = oracle.admit(prompt);
        ASSERT_EQ(match->hit_tokens, live[next_id].committed);
        ++next_id;
      } else if (!live.empty()) {
        auto at = live.begin();
        std::advance(at, family.below(static_cast<int64_t>(live.size())));
        auto& [id, sequence] = *at;
        const int64_t left = static_cast<int64_t>(sequence.tokens.size()) - sequence.committed;
        if (family.one_in(8)) {  // finished or cancelled
          family.said(prefix_of(sequence.tokens, sequence.committed));
          cache->release(SeqId(id));
          live.erase(at);
        } else {
          if (left == 0) family.extend(sequence.tokens, 1);
          int64_t count = left == 0 ? 1 : std::min<int64_t>(left, (1 + family.below(4)) * 16);
          if (left > count) count -= (sequence.committed + count) % 16;
          count = std::max<int64_t>(count, 1);
          ASSERT_TRUE(model.step(*cache, SeqId(id), sequence.tokens, count));
          oracle.commit(sequence, count);
        }
      }
      if (layout.num_kda_layers() > 0) {
        ASSERT_EQ(cache->stats().checkpoints, oracle.num_states());
      }
      ASSERT_EQ(cache->stats().evicted_blocks, 0);
      if (i % 8 == 0) {
        const Status status = cache->audit(i % 64 == 0);
        ASSERT_TRUE(status.is_ok()) << status.message();
      }
    }
  }
}

// Random operations on a pool that is always too small.
class Storm {
 public:
  Storm(uint64_t seed, std::string kinds)
      : kinds_(std::move(kinds)),
        layout_(fake_layout(kinds_, seed % 2 == 0 ? DType::kF32 : DType::kBF16, seed % 3 == 0 ? 4 : 20)),
        model_(layout_),
        family_(seed, 16, 64, 150) {
    HybridCacheOptions options{.hash_unit = 16,
                               .budget_bytes = int64_t{1} << 16,
                               .checkpoint_interval = seed % 2 == 0 ? 48 : 0,
                               .message_end = TokenId(Family::kMessageEnd),
                               .identity = "storm",
                               .poison = seed % 4 == 1};
    options.budget_bytes =
        HybridCache::create(layout_, options).value()->stats().block_bytes * static_cast<int64_t>(12 + seed % 3 * 10);
    cache_ = HybridCache::create(layout_, options).value();
  }

  void run(int64_t operations) {
    for (int64_t i = 0; i < operations && !::testing::Test::HasFatalFailure(); ++i) {
      one_operation();
      if (i % 4 == 0) {
        const Status status = cache_->audit(i % 64 == 0);
        ASSERT_TRUE(status.is_ok()) << status.message() << " after operation " << i;
      }
    }
    while (!live_.empty()) drop(live_.begin());
    swapped_.clear();
    const Status status = cache_->audit(true);
    ASSERT_TRUE(status.is_ok()) << status.message();
    const HybridCacheStats stats = cache_->stats();
    ASSERT_EQ(stats.free_blocks + stats.evictable_blocks, stats.num_blocks);
    hits_ += stats.hit_tokens;
    evicted_ += stats.evicted_blocks;
  }
  int64_t hits() const { return hits_; }
  int64_t evicted() const { return evicted_; }

 private:
  struct Live {
    Tokens tokens;
    int64_t planned = 0;  // rows of a prepared step
    bool has_run = false;
    bool has_failed = false;
    int64_t commit = 0;  // of a window; 0: a plain step
  };
  struct Swapped {
    Tokens tokens;
    std::unique_ptr<SwappedSequence> copy;
  };
  using Iterator = std::map<int32_t, Live>::iterator;

  void drop(Iterator at) {
    if (!at->second.has_failed) {
      family_.said(prefix_of(at->second.tokens, cache_->length(SeqId(at->first))));
    }
    cache_->release(SeqId(at->first));
    live_.erase(at);
  }

  void one_operation() {
    const int64_t choice = family_.below(20);
    if (live_.empty() || choice < 3) return admit();
    if (choice == 3 && !swapped_.empty()) return swap_in();
    auto at = live_.begin();
    std::advance(at, family_.below(static_cast<int64_t>(live_.size())));
    Live& live = at->second;
    if (live.has_failed || choice == 4) return drop(at);
    if (choice == 5 && !live.has_run) return fork(at);
    if (choice == 6 && !live.has_run) return swap_out(at);
    if (choice == 7 && family_.one_in(8)) {
      cache_->quarantine(live.tokens, {}, family_.below(static_cast<int64_t>(live.tokens.size())));
      return;
    }
    if (live.planned == 0 || (!live.has_run && family_.one_in(6))) return prepare(at->first, live);
    if (!live.has_run) return run_model(at->first, live);
    commit(at->first, live);
  }

  void admit() {
    if (live_.size() >= 5) return;
    const Tokens prompt = family_.next_prompt();
    const int64_t room = family_.one_in(2) ? static_cast<int64_t>(prompt.size()) : family_.below(20);
    const bool is_shared = !family_.one_in(10);
    const int64_t expected = is_shared ? cache_->match(prompt, {}).hit_tokens : 0;
    const auto match = cache_->admit(SeqId(next_id_), prompt, {}, room, is_shared);
    if (!match) {
      ASSERT_TRUE(!live_.empty() || room > 60);
      return;
    }
    ASSERT_TRUE(match->hit_tokens == expected || (match->hit_tokens == 0 && live_.empty()));
    live_[next_id_++] = {.tokens = prompt};
  }

  void prepare(int32_t id, Live& live) {
    const int64_t done = cache_->length(SeqId(id));
    int64_t left = static_cast<int64_t>(live.tokens.size()) - done;
    if (left == 0) {
      family_.extend(live.tokens, 1 + family_.below(5));
      left = static_cast<int64_t>(live.tokens.size()) - done;
    }
    const int64_t count = 1 + family_.below(std::min<int64_t>(left, 64));
    live.commit = family_.one_in(3) ? 1 + family_.below(count) : 0;
    const bool has_room = live.commit > 0 ? cache_->prepare_window(SeqId(id), count, live.commit)
                                          : cache_->prepare_step(SeqId(id), count);
    live.planned = has_room ? count : 0;
    live.has_run = false;
  }

  void run_model(int32_t id, Live& live) {
    const int64_t done = cache_->length(SeqId(id));
    const SequenceCacheView view = cache_->view(SeqId(id));
    ASSERT_TRUE(model_.holds(view, live.tokens, done)) << "sequence " << id;
    model_.run(view, cache_->captures(SeqId(id)), live.tokens, done, live.planned);
    live.has_run = true;
  }

  void commit(int32_t id, Live& live) {
    const int64_t done = cache_->length(SeqId(id));
    if (family_.one_in(20)) {
      cache_->abort_step(SeqId(id));
      live.has_failed = true;
      return;
    }
    const auto rows = std::span(live.tokens).subspan(static_cast<size_t>(done), static_cast<size_t>(live.planned));
    const int64_t accepted = live.commit > 0 && family_.one_in(2) ? live.commit : live.planned;
    const Status status =
        live.commit > 0 ? cache_->commit_window(SeqId(id), rows, accepted) : cache_->commit_step(SeqId(id), rows);
    ASSERT_TRUE(status.is_ok()) << status.message();
    ASSERT_EQ(cache_->length(SeqId(id)), done + accepted);
    live.planned = 0;
    live.has_run = false;
  }

  void fork(Iterator at) {
    if (live_.size() >= 5 || !cache_->fork(SeqId(at->first), SeqId(next_id_))) return;
    live_[next_id_++] = {.tokens = at->second.tokens};
  }

  void swap_out(Iterator at) {
    if (auto copy = cache_->swap_out(SeqId(at->first), family_.one_in(4) ? 1000 : 1 << 20)) {
      swapped_.push_back({.tokens = at->second.tokens, .copy = std::move(copy)});
      live_.erase(at);
    } else {
      ASSERT_GT(cache_->swap_bytes(SeqId(at->first)), 1000);
    }
  }

  void swap_in() {
    if (live_.size() >= 5) return;
    const auto at = swapped_.begin() + family_.below(static_cast<int64_t>(swapped_.size()));
    bool lost = false;
    if (cache_->swap_in(SeqId(next_id_), *at->copy, family_.below(20), lost)) {
      ASSERT_FALSE(lost);
      ASSERT_EQ(cache_->length(SeqId(next_id_)), at->copy->length());
      live_[next_id_++] = {.tokens = at->tokens};
      swapped_.erase(at);
    } else if (lost) {
      swapped_.erase(at);
    }
  }

  std::string kinds_;
  CacheLayout layout_;
  FakeModel model_;
  Family family_;
  std::unique_ptr<HybridCache> cache_;
  std::map<int32_t, Live> live_;
  std::vector<Swapped> swapped_;
  int32_t next_id_ = 1;
  int64_t hits_ = 0;
  int64_t evicted_ = 0;
};

TEST(HybridCacheFuzz, EveryByteIsRightInAPoolThatIsTooSmall) {
  const std::vector<std::string> shapes = {"kkkm", "km", "k", "mm", "kkkmkkm", "kkk"};
  int64_t hits = 0;
  int64_t evicted = 0;
  for (uint64_t seed = 1; seed <= 48; ++seed) {
    SCOPED_TRACE(cat("seed ", seed, " ", shapes[seed % shapes.size()]));
    Storm storm(seed, shapes[seed % shapes.size()]);
    storm.run(test::effort(4000));
    if (HasFatalFailure()) return;
    hits += storm.hits();
    evicted += storm.evicted();
  }
  EXPECT_GT(hits, test::effort(1000));  // it is not the absence of sharing that made it right
  EXPECT_GT(evicted, test::effort(1000));
}

// Pages and units of many sizes, resumed from every offset (field report 25).
TEST(HybridCacheFuzz, AnyUnitAndPageResumesAtEveryOffset) {
  for (const int64_t unit : {16, 32, 64, 128, 512, 2048}) {
    for (const int64_t head_dim : {4, 24, 48}) {
      for (const char* kinds : {"km", "kkkm", "kkkkmm"}) {
        const CacheLayout layout = fake_layout(kinds, DType::kF32, head_dim);
        for (const auto& groups : {std::optional<int64_t>(), std::optional<int64_t>(1)}) {
          const HybridCacheOptions options{.hash_unit = unit,
                                           .budget_bytes = int64_t{1} << 26,
                                           .num_kda_groups = groups,
                                           .checkpoint_interval = unit,
                                           .checkpoints_per_chain = 1000,
                                           .identity = "sizes"};
          auto cache = HybridCache::create(layout, options).value();
          const FakeModel model(layout);
          const int64_t page = cache->layout().page_tokens;
          SCOPED_TRACE(cat(kinds, " unit ", unit, " page ", page));
          std::mt19937_64 random(static_cast<uint64_t>(unit + head_dim));
          Tokens tokens;
          const int64_t units = std::min<int64_t>(2 * page / unit + 2, unit >= 512 ? 3 : 8);
          for (int64_t i = 0; i < units * unit + 5; ++i) tokens.emplace_back(static_cast<int32_t>(random() % 90));
          ASSERT_TRUE(cache->admit(SeqId(0), tokens, {}, 1));
          ASSERT_TRUE(model.run_to_end(*cache, SeqId(0), tokens));
          for (int32_t resume = 1; resume <= units; ++resume) {
            Tokens other = prefix_of(tokens, resume * unit);
            for (int64_t i = 0; i < unit / 2 + 1; ++i) other.emplace_back(95);
            const auto match = cache->admit(SeqId(resume), other, {}, 1);
            ASSERT_TRUE(match.has_value());
            ASSERT_EQ(match->hit_tokens, resume * unit);
            ASSERT_TRUE(model.run_to_end(*cache, SeqId(resume), other, std::max<int64_t>(16, unit / 4)));
          }
          ASSERT_TRUE(model.step(
              *cache, SeqId(0),
              [&] {
                auto t = tokens;
                t.emplace_back(3);
                return t;
              }(),
              1));
          const Status status = cache->audit(true);
          ASSERT_TRUE(status.is_ok()) << status.message();
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem
