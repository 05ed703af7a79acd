// tests/cache/prefix_world.h: sequences that use a prefix index as an engine does, in any order and with anything taken
// away between their steps, beside the oracle that predicts every outcome.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "cache/prefix_index.h"
#include "cache/prefix_oracle.h"

namespace tandem {

inline void PrintTo(const MissedRange& range, std::ostream* out) {
  *out << "[" << range.begin << ", " << range.end << ") " << miss_reason_name(range.reason);
}

namespace test {

inline std::vector<TokenId> token_ids(std::string_view text) {
  std::vector<TokenId> tokens;
  for (const char token : text) tokens.emplace_back(token);
  return tokens;
}

// Missed ranges follow one another from the hit to the prompt's end, and lengths nest.
inline void expect_well_formed(const PrefixMatch& match) {
  EXPECT_LE(match.hit_tokens, match.matched_tokens);
  EXPECT_LE(match.matched_tokens, match.known_tokens);
  EXPECT_LE(match.known_tokens, match.prompt_tokens);
  EXPECT_TRUE(match.hit_tokens == 0 || match.hit_tokens < match.prompt_tokens);
  int64_t reached = match.hit_tokens;
  for (const MissedRange& range : match.missed) {
    EXPECT_EQ(range.begin, reached);
    EXPECT_LT(range.begin, range.end);
    reached = range.end;
  }
  EXPECT_EQ(reached, match.prompt_tokens);
}

inline void expect_equal(const PrefixMatch& found, const PrefixMatch& expected) {
  EXPECT_EQ(found.prompt_tokens, expected.prompt_tokens);
  EXPECT_EQ(found.hash_unit, expected.hash_unit);
  EXPECT_EQ(found.hit_tokens, expected.hit_tokens);
  EXPECT_EQ(found.matched_tokens, expected.matched_tokens);
  EXPECT_EQ(found.known_tokens, expected.known_tokens);
  EXPECT_EQ(found.checkpoints, expected.checkpoints);
  EXPECT_EQ(found.missed, expected.missed);
  EXPECT_EQ(found.hit_without_divergence, expected.hit_without_divergence);
  ASSERT_EQ(found.divergence.has_value(), expected.divergence.has_value());
  if (!found.divergence) return;
  EXPECT_EQ(found.divergence->position, expected.divergence->position);
  EXPECT_EQ(found.divergence->found, expected.divergence->found);
  EXPECT_EQ(found.divergence->expected, expected.divergence->expected);
  EXPECT_EQ(found.divergence->expected_tokens, expected.divergence->expected_tokens);
}

class PrefixWorld {
 public:
  struct Limits {
    size_t max_sequences = 4;
    size_t max_blocks = 24;   // named; beyond, some are taken away first
    int64_t max_tokens = 17;  // of a prompt
    bool explains = true;     // no ghost was ever dropped: explanations are predicted too, not hits alone
  };

  PrefixWorld(const PrefixIndexOptions& options, const Limits& limits, uint64_t seed,
              ChainHash* chain_hash = &chain_prefix_hash)
      : options_(options), limits_(limits), index_(options, chain_hash), oracle_(options), random_(seed) {}

  ~PrefixWorld() {
    while (!sequences_.empty()) finish(sequences_.size() - 1);
    EXPECT_EQ(index_.num_held(), 0);
    EXPECT_EQ(index_.audit().message(), "");
  }

  // What was met on the way: a law that nothing tested is no law.
  struct Seen {
    int64_t hits = 0;
    int64_t by_reason[8] = {};
    int64_t divergences = 0;
    int64_t divergences_inside = 0;  // behind the unit's first token
    int64_t repairs = 0;             // hit_without_divergence beyond the hit
    int64_t orphans = 0;             // blocks lost with another one
    int64_t thinned_out = 0;         // checkpoints dropped by retention
    int64_t dominated = 0;
    int64_t refused = 0;  // latents behind a quarantine or an eviction

    Seen& operator+=(const Seen& other) {
      hits += other.hits;
      for (size_t i = 0; i < 8; ++i) by_reason[i] += other.by_reason[i];
      divergences += other.divergences;
      divergences_inside += other.divergences_inside;
      repairs += other.repairs;
      orphans += other.orphans;
      thinned_out += other.thinned_out;
      dominated += other.dominated;
      refused += other.refused;
      return *this;
    }
  };
  const Seen& seen() const { return seen_; }

  // One operation, and every law after it.
  void step() {
    switch (pick(16)) {
      case 0:
      case 1: start(); break;
      case 2:
      case 3:
      case 4:
      case 5: compute(); break;
      case 6:
      case 7: take_checkpoint(); break;
      case 8: grow(); break;
      case 9:
        if (!sequences_.empty()) finish(pick(sequences_.size()));
        break;
      case 10: remove_some_block(); break;
      case 11: remove_some_checkpoint(); break;
      case 12:
        if (pick(8) == 0) quarantine();
        break;
      default: look_up(); break;
    }
    if (oracle_.blocks().size() > limits_.max_blocks) remove_some_block();
    check();
  }

 private:
  struct Sequence {
    std::string salt;
    std::string owner;
    std::string tokens;
    std::vector<PrefixIndex::Node*> nodes;  // the root, then a node for each whole unit
    std::vector<bool> is_announced;         // by unit
    int64_t computed = 0;                   // units that are hit or were computed
    int64_t cut_from = 1 << 20;             // the first unit that a quarantine cut off
    std::optional<int32_t> block;           // of the page being written
    std::string key(int64_t units, int64_t u) const {
      return PrefixOracle::key(salt, std::string_view(tokens).substr(0, static_cast<size_t>(units * u)));
    }
  };

  size_t pick(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

  // A family: a known stem cut around a unit or a page, and something new behind it.
  std::string make_prompt() {
    std::string prompt;
    if (!stems_.empty() && pick(8) != 0) {
      const std::string& stem = stems_[pick(stems_.size())];
      const int64_t step = pick(2) == 0 ? options_.hash_unit : options_.page_tokens;
      int64_t length = step * static_cast<int64_t>(pick(5)) + static_cast<int64_t>(pick(3)) - 1;
      if (pick(4) == 0) length = static_cast<int64_t>(stem.size());
      prompt = stem.substr(0, static_cast<size_t>(std::max<int64_t>(length, 0)));
    }
    for (size_t more = pick(7); more > 0; --more) prompt.push_back(static_cast<char>('a' + pick(2)));
    prompt.resize(std::min(prompt.size(), static_cast<size_t>(limits_.max_tokens)));
    if (stems_.size() < 12) {
      stems_.push_back(prompt);
    } else {
      stems_[pick(12)] = prompt;
    }
    return prompt;
  }
  std::string make_salt() { return pick(4) == 0 ? "s" : ""; }
  std::string make_owner() { return pick(3) == 0 ? "bob" : "ann"; }

  void look_up() {
    const std::string salt = make_salt();
    compare(salt, make_owner(), make_prompt());
  }

  PrefixLookup compare(const std::string& salt, const std::string& owner, const std::string& tokens) {
    const PrefixLookup found = index_.lookup(token_ids(tokens), {salt, owner});
    const std::string what = "salt '" + salt + "' owner " + owner + " prompt " + tokens;
    SCOPED_TRACE(what);
    expect_well_formed(found.match);
    EXPECT_EQ(found.match.hit_tokens, oracle_.hit(salt, tokens));
    EXPECT_EQ(found.latent_tokens, oracle_.latent_tokens(salt, tokens));
    if (limits_.explains) expect_equal(found.match, oracle_.match(salt, tokens, owner));
    note(found.match);
    const int64_t hit = found.match.hit_tokens;
    if (options_.has_mla) {
      EXPECT_EQ(static_cast<int64_t>(found.pages.size()), (hit + options_.page_tokens - 1) / options_.page_tokens);
    }
    for (size_t page = 0; page < found.pages.size(); ++page) {
      const int64_t end = std::min((static_cast<int64_t>(page) + 1) * options_.page_tokens, hit);
      const std::string rows = PrefixOracle::key(salt, std::string_view(tokens).substr(0, static_cast<size_t>(end)));
      EXPECT_TRUE(oracle_.block_holds(found.pages[page].value, rows)) << "page " << page;
    }
    EXPECT_EQ(found.checkpoint.has_value(), options_.has_kda && hit > 0);
    if (found.checkpoint) {
      const std::string boundary =
          PrefixOracle::key(salt, std::string_view(tokens).substr(0, static_cast<size_t>(hit)));
      EXPECT_EQ(oracle_.checkpoint(boundary), found.checkpoint->value);
    }
    return found;
  }

  void note(const PrefixMatch& match) {
    seen_.hits += match.hit_tokens > 0 ? 1 : 0;
    for (const MissedRange& range : match.missed) ++seen_.by_reason[static_cast<size_t>(range.reason)];
    if (!match.divergence) return;
    ++seen_.divergences;
    seen_.divergences_inside += match.divergence->position % options_.hash_unit != 0 ? 1 : 0;
    seen_.repairs += match.hit_without_divergence > match.hit_tokens ? 1 : 0;
  }

  void start() {
    if (sequences_.size() >= limits_.max_sequences) return;
    Sequence sequence;
    sequence.salt = make_salt();
    sequence.owner = make_owner();
    sequence.tokens = make_prompt();
    const CacheScope scope{sequence.salt, sequence.owner};
    const PrefixLookup found = compare(sequence.salt, sequence.owner, sequence.tokens);
    sequence.computed = found.match.hit_tokens / options_.hash_unit;
    sequence.nodes.push_back(index_.root(scope));
    sequences_.push_back(std::move(sequence));
    extend(sequences_.back(), pick(2) == 0);
    for (int64_t i = 0; i < sequences_.back().computed; ++i) credit(sequences_.back(), i);
  }

  // Holds the nodes of all whole units.
  void extend(Sequence& sequence, bool is_announced) {
    const int64_t u = options_.hash_unit;
    while (static_cast<int64_t>(sequence.nodes.size()) * u <= static_cast<int64_t>(sequence.tokens.size())) {
      const int64_t unit = static_cast<int64_t>(sequence.nodes.size()) - 1;
      const auto tokens =
          token_ids(std::string_view(sequence.tokens).substr(static_cast<size_t>(unit * u), static_cast<size_t>(u)));
      PrefixIndex::Node* node = index_.extend(sequence.nodes.back(), tokens);
      sequence.nodes.push_back(node);
      const bool is_cut_off = unit >= sequence.cut_from;
      EXPECT_EQ(index_.is_cut_off(node), is_cut_off);
      EXPECT_EQ(index_.position(node), (unit + 1) * u);
      if (!is_cut_off) oracle_.hold(sequence.key(unit + 1, u), 1);
      sequence.is_announced.push_back(is_announced && unit >= sequence.computed);
      if (!sequence.is_announced.back()) continue;
      index_.announce(node, {sequence.salt, sequence.owner}, true);
      if (!is_cut_off) oracle_.announce(sequence.key(unit + 1, u), sequence.owner, true);
    }
  }

  void credit(Sequence& sequence, int64_t unit) {
    index_.credit(sequence.nodes[static_cast<size_t>(unit) + 1], {sequence.salt, sequence.owner});
    if (unit < sequence.cut_from) oracle_.credit(sequence.key(unit + 1, options_.hash_unit), sequence.owner);
  }

  void take_back(Sequence& sequence, int64_t unit) {
    if (!sequence.is_announced[static_cast<size_t>(unit)]) return;
    sequence.is_announced[static_cast<size_t>(unit)] = false;
    index_.announce(sequence.nodes[static_cast<size_t>(unit) + 1], {sequence.salt, sequence.owner}, false);
    if (unit < sequence.cut_from) {
      oracle_.announce(sequence.key(unit + 1, options_.hash_unit), sequence.owner, false);
    }
  }

  // The next unit, or a step of two of which the first is not published by itself.
  void compute() {
    if (sequences_.empty()) return;
    Sequence& sequence = sequences_[pick(sequences_.size())];
    const int64_t u = options_.hash_unit;
    const int64_t ready = static_cast<int64_t>(sequence.nodes.size()) - 1 - sequence.computed;
    if (ready == 0) return;
    const int64_t units_per_page = options_.page_tokens / u;
    int64_t units = std::min<int64_t>(ready, 1 + static_cast<int64_t>(pick(2)));
    if (sequence.computed % units_per_page + units > units_per_page) units = 1;
    if (sequence.computed % units_per_page == 0) sequence.block.reset();
    // A block of its own for each page; what it resumed in the middle of was copied there.
    if (!sequence.block) sequence.block = ++last_block_;
    sequence.computed += units;
    const int64_t unit = sequence.computed - 1;
    if (options_.has_mla) {
      const bool is_added = index_.add_latents(sequence.nodes[static_cast<size_t>(unit) + 1], BlockId(*sequence.block));
      const bool is_cut_off = unit >= sequence.cut_from;
      EXPECT_EQ(is_added, !is_cut_off && oracle_.add_latents(sequence.key(unit + 1, u), *sequence.block));
      seen_.refused += is_added ? 0 : 1;
      EXPECT_TRUE(!is_added || index_.has_latents(sequence.nodes[static_cast<size_t>(unit) + 1]));
    }
    for (int64_t i = unit - units + 1; i <= unit; ++i) {
      credit(sequence, i);
      take_back(sequence, i);
    }
  }

  void grow() {
    if (sequences_.empty()) return;
    Sequence& sequence = sequences_[pick(sequences_.size())];
    for (size_t more = pick(4); more > 0 && static_cast<int64_t>(sequence.tokens.size()) < limits_.max_tokens; --more) {
      sequence.tokens.push_back(static_cast<char>('a' + pick(2)));
    }
    extend(sequence, pick(2) == 0);
  }

  void take_checkpoint() {
    if (sequences_.empty() || !options_.has_kda) return;
    Sequence& sequence = sequences_[pick(sequences_.size())];
    if (sequence.computed == 0) return;
    const int64_t unit =
        sequence.computed - 1 - static_cast<int64_t>(pick(2) * pick(static_cast<size_t>(sequence.computed)));
    const auto reason = static_cast<CheckpointReason>(pick(5));
    IndexLoss loss;
    PrefixOracle::Loss expected;
    const int32_t id = ++last_checkpoint_;
    const bool is_added =
        index_.add_checkpoint(sequence.nodes[static_cast<size_t>(unit) + 1], CheckpointId(id), reason, loss);
    EXPECT_EQ(is_added, unit < sequence.cut_from &&
                            oracle_.add_checkpoint(sequence.key(unit + 1, options_.hash_unit), id, reason, expected));
    expect_loss(loss, expected);
    seen_.thinned_out += static_cast<int64_t>(loss.checkpoints.size());
  }

  void finish(size_t which) {
    Sequence& sequence = sequences_[which];
    for (int64_t unit = 0; unit + 1 < static_cast<int64_t>(sequence.nodes.size()); ++unit) take_back(sequence, unit);
    std::vector<size_t> order(sequence.nodes.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    for (const size_t i : order) {
      index_.give_back(sequence.nodes[i]);
      const int64_t unit = static_cast<int64_t>(i) - 1;
      if (unit >= 0 && unit < sequence.cut_from) oracle_.hold(sequence.key(unit + 1, options_.hash_unit), -1);
    }
    sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  MissReason make_why() { return pick(4) == 0 ? MissReason::kQuarantined : MissReason::kEvicted; }

  void remove_some_block() {
    const std::vector<BlockId> blocks = oracle_.blocks();
    if (blocks.empty()) return;
    const BlockId block = blocks[pick(blocks.size())];
    const MissReason why = make_why();
    const PrefixOracle::Loss expected = oracle_.remove_block(block.value, why);
    expect_loss(index_.remove_block(block, why), expected);
    seen_.orphans += static_cast<int64_t>(expected.blocks.size()) - 1;
    EXPECT_TRUE(index_.remove_block(block, why).empty());
  }

  void remove_some_checkpoint() {
    const std::vector<CheckpointId> checkpoints = oracle_.checkpoints();
    if (checkpoints.empty()) return;
    const CheckpointId id = checkpoints[pick(checkpoints.size())];
    EXPECT_EQ(index_.is_dominated(id), oracle_.is_dominated(id.value));
    seen_.dominated += index_.is_dominated(id) ? 1 : 0;
    const MissReason why = make_why();
    expect_loss(index_.remove_checkpoint(id, why), oracle_.remove_checkpoint(id.value, why));
    EXPECT_TRUE(index_.remove_checkpoint(id, why).empty());
  }

  void quarantine() {
    const std::string salt = make_salt();
    const std::string tokens = make_prompt();
    const int64_t begin = static_cast<int64_t>(pick(tokens.size() + 1));
    PrefixOracle::Loss expected;
    const auto first = oracle_.quarantine(salt, tokens, begin, expected);
    expect_loss(index_.quarantine(token_ids(tokens), {salt, "ann"}, begin), expected);
    if (!first) return;
    for (Sequence& sequence : sequences_) {
      const int64_t unit = PrefixOracle::position(*first) / options_.hash_unit - 1;
      const int64_t held = static_cast<int64_t>(sequence.nodes.size()) - 1;
      if (unit < held && sequence.key(held, options_.hash_unit).starts_with(*first)) {
        sequence.cut_from = std::min(sequence.cut_from, unit);
      }
    }
  }

  static void expect_loss(const IndexLoss& loss, const PrefixOracle::Loss& expected) {
    std::vector<int32_t> blocks;
    std::vector<int32_t> checkpoints;
    for (const BlockId block : loss.blocks) blocks.push_back(block.value);
    for (const CheckpointId checkpoint : loss.checkpoints) checkpoints.push_back(checkpoint.value);
    std::sort(blocks.begin(), blocks.end());
    std::sort(checkpoints.begin(), checkpoints.end());
    EXPECT_EQ(blocks, std::vector<int32_t>(expected.blocks.begin(), expected.blocks.end()));
    EXPECT_EQ(checkpoints, std::vector<int32_t>(expected.checkpoints.begin(), expected.checkpoints.end()));
  }

  void check() {
    EXPECT_EQ(index_.audit().message(), "");
    EXPECT_LE(index_.num_ghosts(), options_.max_ghosts);
    if (pick(8) != 0) return;  // what the oracle counts by going through everything
    EXPECT_EQ(index_.named_blocks(), oracle_.blocks());
    EXPECT_EQ(index_.named_checkpoints(), oracle_.checkpoints());
    EXPECT_EQ(index_.num_checkpoints(), static_cast<int64_t>(oracle_.checkpoints().size()));
    EXPECT_EQ(index_.num_units(), oracle_.num_units());
    int64_t held = 0;
    for (const Sequence& sequence : sequences_) held += static_cast<int64_t>(sequence.nodes.size());
    EXPECT_EQ(index_.num_held(), held);
    EXPECT_TRUE(!limits_.explains || index_.num_ghosts() == oracle_.num_ghosts());
  }

  PrefixIndexOptions options_;
  Limits limits_;
  PrefixIndex index_;
  PrefixOracle oracle_;
  std::mt19937_64 random_;
  std::vector<Sequence> sequences_;
  std::vector<std::string> stems_;
  Seen seen_;
  int32_t last_block_ = 0;
  int32_t last_checkpoint_ = 0;
};

}  // namespace test
}  // namespace tandem
