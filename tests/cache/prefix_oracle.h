// tests/cache/prefix_oracle.h: the prefix index by brute force. A prefix is a string "salt|tokens"; nothing is linked,
// hashed or counted: every question is answered by looking at every block, checkpoint and prefix there is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/prefix_index.h"

namespace tandem::test {

class PrefixOracle {
 public:
  struct Hearing {
    int announced = 0;
    bool is_credited = false;
    uint64_t time = 0;
  };
  struct Prefix {
    bool is_written = false;
    int held = 0;
    std::optional<int32_t> checkpoint;
    CheckpointReason reason = CheckpointReason::kPromptEnd;
    std::optional<MissReason> lost_checkpoint;
    MissReason lost_latents = MissReason::kEvicted;
    std::map<std::string, Hearing> hearers;
  };
  struct Loss {
    std::set<int32_t> blocks;
    std::set<int32_t> checkpoints;
  };

  explicit PrefixOracle(const PrefixIndexOptions& options) : options_(options) {}

  static std::string key(const std::string& salt, std::string_view tokens) { return salt + "|" + std::string(tokens); }
  static int64_t position(const std::string& key) { return static_cast<int64_t>(key.size() - key.find('|') - 1); }
  std::string parent(const std::string& key) const { return key.substr(0, key.size() - unit()); }

  // What happens ---------------------------------------------------------------------------------------------------

  void hold(const std::string& key, int by) { prefixes_[key].held += by; }

  void announce(const std::string& key, const std::string& owner, bool is_being_written) {
    Hearing& hearing = prefixes_[key].hearers[owner];
    hearing.announced += is_being_written ? 1 : -1;
    if (is_being_written) hearing.time = ++clock_;
  }

  void credit(const std::string& key, const std::string& owner) {
    if (options_.has_mla && !prefixes_[key].is_written) return;
    Hearing& hearing = prefixes_[key].hearers[owner];
    hearing.is_credited = true;
    hearing.time = ++clock_;
    mark_written(key);
  }

  bool add_latents(const std::string& key, int32_t block) {
    const int64_t page_begin = page(key) * options_.page_tokens;
    const std::string before = key.substr(0, key.size() - static_cast<size_t>(position(key) - page_begin));
    if (page_begin > 0 && !has_latents(before)) return false;
    std::string& tip = tips_[block];
    if (tip.size() < key.size()) tip = key;
    mark_written(key);
    return true;
  }

  bool add_checkpoint(const std::string& key, int32_t checkpoint, CheckpointReason reason, Loss& loss) {
    Prefix& prefix = prefixes_[key];
    if (prefix.checkpoint || (options_.has_mla && !has_latents(key))) return false;
    prefix.checkpoint = checkpoint;
    prefix.reason = reason;
    prefix.lost_checkpoint.reset();
    mark_written(key);
    thin_out(key, loss);
    return true;
  }

  Loss remove_block(int32_t block, MissReason why) {
    Loss loss;
    std::set<std::string> before;
    for (const auto& [key, prefix] : prefixes_) {
      if (has_latents(key)) before.insert(key);
    }
    if (tips_.erase(block) == 0) return loss;
    loss.blocks.insert(block);
    for (bool changed = true; changed;) {  // until no page stands on a missing one
      changed = false;
      for (auto tip = tips_.begin(); tip != tips_.end();) {
        const size_t rows = static_cast<size_t>(position(tip->second) - page(tip->second) * options_.page_tokens);
        const std::string below = tip->second.substr(0, tip->second.size() - rows);
        const bool is_orphan = position(below) > 0 && !has_latents(below);
        if (is_orphan) loss.blocks.insert(tip->first);
        tip = is_orphan ? tips_.erase(tip) : std::next(tip);
        changed = changed || is_orphan;
      }
    }
    for (const std::string& key : before) {
      if (has_latents(key)) continue;
      prefixes_[key].lost_latents = why;
      drop_checkpoint(prefixes_[key], why, loss);
    }
    return loss;
  }

  Loss remove_checkpoint(int32_t checkpoint, MissReason why) {
    Loss loss;
    for (auto& [key, prefix] : prefixes_) {
      if (prefix.checkpoint == checkpoint) drop_checkpoint(prefix, why, loss);
    }
    return loss;
  }

  // The prefix whose descendants are gone for those that hold them; none when there is no such prefix.
  std::optional<std::string> quarantine(const std::string& salt, const std::string& tokens, int64_t begin, Loss& loss) {
    const int64_t end = (begin / options_.hash_unit + 1) * options_.hash_unit;
    if (end > static_cast<int64_t>(tokens.size())) return std::nullopt;
    const std::string first = key(salt, std::string_view(tokens).substr(0, static_cast<size_t>(end)));
    if (!exists(first)) return std::nullopt;
    for (auto tip = tips_.begin(); tip != tips_.end();) {
      const bool is_behind = tip->second.starts_with(first);
      const bool keeps_rows = page(tip->second) == page(first) && page(parent(first)) == page(first) &&
                              position(first) > options_.hash_unit;
      if (is_behind && keeps_rows) tip->second = parent(first);
      if (is_behind && !keeps_rows) loss.blocks.insert(tip->first);
      tip = is_behind && !keeps_rows ? tips_.erase(tip) : std::next(tip);
    }
    for (auto& [name, prefix] : prefixes_) {
      if (!name.starts_with(first)) continue;
      prefix.lost_latents = MissReason::kQuarantined;
      drop_checkpoint(prefix, MissReason::kQuarantined, loss);
      prefix.held = 0;
      for (auto& [owner, hearing] : prefix.hearers) hearing.announced = 0;
    }
    return first;
  }

  // What can be said ------------------------------------------------------------------------------------------------

  bool has_latents(const std::string& key) const {
    return std::any_of(tips_.begin(), tips_.end(), [&](const auto& tip) { return holds_rows(tip.second, key); });
  }
  bool block_holds(int32_t block, const std::string& key) const {
    const auto tip = tips_.find(block);
    return tip != tips_.end() && holds_rows(tip->second, key);
  }
  bool is_cached(const std::string& key) const {
    return options_.has_mla ? has_latents(key) : find(key).checkpoint.has_value();
  }
  std::optional<int32_t> checkpoint(const std::string& key) const { return find(key).checkpoint; }

  int64_t hit(const std::string& salt, const std::string& tokens) const;
  PrefixMatch match(const std::string& salt, const std::string& tokens, const std::string& owner) const;
  int64_t latent_tokens(const std::string& salt, const std::string& tokens) const {
    int64_t length = 0;
    while (options_.has_mla && length + options_.hash_unit <= size(tokens) &&
           has_latents(cut(salt, tokens, length + options_.hash_unit))) {
      length += options_.hash_unit;
    }
    return length;
  }
  bool is_dominated(int32_t checkpoint) const;

  std::vector<BlockId> blocks() const {
    std::vector<BlockId> named;
    for (const auto& [block, tip] : tips_) named.emplace_back(block);
    return named;
  }
  std::vector<CheckpointId> checkpoints() const {
    std::set<int32_t> ids;
    for (const auto& [key, prefix] : prefixes_) {
      if (prefix.checkpoint) ids.insert(*prefix.checkpoint);
    }
    return {ids.begin(), ids.end()};
  }
  int64_t num_units() const {
    return std::count_if(prefixes_.begin(), prefixes_.end(), [&](const auto& p) { return is_unit(p.first); });
  }
  int64_t num_ghosts() const {
    return std::count_if(prefixes_.begin(), prefixes_.end(), [&](const auto& p) {
      return p.second.is_written &&
             !any_behind(p.first, [&](const auto& b) { return is_unit(b.first) || b.second.held > 0; });
    });
  }

 private:
  size_t unit() const { return static_cast<size_t>(options_.hash_unit); }
  static int64_t size(const std::string& tokens) { return static_cast<int64_t>(tokens.size()); }
  static std::string cut(const std::string& salt, const std::string& tokens, int64_t length) {
    return key(salt, std::string_view(tokens).substr(0, static_cast<size_t>(length)));
  }
  int64_t page(const std::string& key) const { return (position(key) - 1) / options_.page_tokens; }
  bool holds_rows(const std::string& tip, const std::string& key) const {
    return tip.starts_with(key) && page(tip) == page(key);
  }
  const Prefix& find(const std::string& key) const {
    static const Prefix kNone;
    const auto found = prefixes_.find(key);
    return found == prefixes_.end() ? kNone : found->second;
  }
  bool is_unit(const std::string& key) const { return find(key).checkpoint || has_latents(key); }

  // `key` itself included.
  template <class Predicate>
  bool any_behind(const std::string& key, Predicate predicate) const {
    for (auto prefix = prefixes_.lower_bound(key); prefix != prefixes_.end(); ++prefix) {
      if (!prefix->first.starts_with(key)) return false;
      if (predicate(*prefix)) return true;
    }
    return false;
  }
  bool is_live(const std::string& key) const {
    return any_behind(key, [&](const auto& prefix) { return is_unit(prefix.first); });
  }
  bool exists(const std::string& key) const {
    return any_behind(key, [&](const auto& p) { return p.second.is_written || p.second.held > 0; });
  }
  std::vector<std::string> children(const std::string& key) const {
    std::vector<std::string> found;
    for (auto prefix = prefixes_.lower_bound(key); prefix != prefixes_.end(); ++prefix) {
      if (!prefix->first.starts_with(key)) break;
      if (prefix->first.size() == key.size() + unit()) found.push_back(prefix->first);
    }
    return found;
  }
  bool is_branching(const std::string& key) const {
    const auto all = children(key);
    return std::count_if(all.begin(), all.end(), [&](const auto& child) { return is_live(child); }) > 1;
  }
  void mark_written(std::string key) {
    for (; position(key) > 0; key = parent(key)) prefixes_[key].is_written = true;
  }
  static void drop_checkpoint(Prefix& prefix, MissReason why, Loss& loss) {
    if (!prefix.checkpoint) return;
    loss.checkpoints.insert(*prefix.checkpoint);
    prefix.checkpoint.reset();
    prefix.lost_checkpoint = why;
  }

  bool is_credited(const std::string& key, const std::string& owner) const {
    const auto& hearers = find(key).hearers;
    return hearers.contains(owner) && hearers.at(owner).is_credited;
  }
  bool is_announced(const std::string& key, const std::string& owner) const {
    const auto& hearers = find(key).hearers;
    return hearers.contains(owner) && hearers.at(owner).announced > 0;
  }
  void thin_out(const std::string& added, Loss& loss);
  std::optional<std::string> closest(const std::string& last, std::string_view wanted, const std::string& owner) const;
  void diverge(PrefixMatch& match, const std::string& salt, const std::string& tokens, const std::string& owner,
               int64_t seen) const;
  MissReason missing_state(const std::string& salt, const std::string& tokens, const std::string& owner, int64_t end,
                           int64_t limit) const;

  PrefixIndexOptions options_;
  std::map<std::string, Prefix> prefixes_;
  std::map<int32_t, std::string> tips_;  // by block: the longest prefix whose last rows it holds
  uint64_t clock_ = 0;
};

}  // namespace tandem::test
