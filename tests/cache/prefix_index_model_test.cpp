// All interleavings of two sequences of two units each, every state having two groups of blocks, with evictions and a
// quarantine at any point. Every reachable state is visited once; in each the laws are checked against what was written
// and taken away, which is kept here as plain sets:
//   closure    a unit is matched only behind matched units, and what is orphaned is reported and never comes back
//   I4, I5     a checkpoint is hit with both groups there or not at all; its place is the prompt's
//   in flight  a unit that was only announced, or that a cut-off sequence computes, is matched by nobody
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "base/cat.h"
#include "cache/prefix_world.h"
#include "support/effort.h"

namespace tandem::test {
namespace {

constexpr int kSequences = 2;
constexpr int kGroups = 2;
constexpr int64_t kUnits = 2;

struct Action {
  enum Kind { kAdvance, kEvictBlock, kEvictGroup, kQuarantine };
  Kind kind = kAdvance;
  int which = 0;  // sequence, block or checkpoint
  int part = 0;   // the group, or the unit a quarantine begins in
};

struct Scenario {
  std::string prompts[kSequences];  // two units of one token, and one that is left to compute
  int64_t units_per_page = 1;
  int64_t max_disturbances = 2;
};

// Blocks and states as their owner sees them, and the index that is told of them.
class Model {
 public:
  explicit Model(const Scenario& scenario)
      : scenario_(scenario),
        index_({.hash_unit = 1,
                .page_tokens = scenario.units_per_page,
                .has_kda = true,
                .has_mla = true,
                .identity = "",
                .max_ghosts = 2,
                .checkpoints_per_chain = 2}) {}
  ~Model() { finish(); }

  std::vector<Action> possible() const {
    std::vector<Action> actions;
    for (int s = 0; s < kSequences; ++s) {
      if (!sequences_[s].is_done) actions.push_back({Action::kAdvance, s, 0});
    }
    if (num_disturbances_ >= scenario_.max_disturbances) return actions;
    for (const auto& [block, rows] : rows_) actions.push_back({Action::kEvictBlock, block, 0});
    for (const auto& [checkpoint, state] : states_) {
      for (int group = 0; group < kGroups; ++group) {
        if (state.groups.contains(group)) actions.push_back({Action::kEvictGroup, checkpoint, group});
      }
    }
    for (int unit = 0; unit < kUnits; ++unit) actions.push_back({Action::kQuarantine, 0, unit});
    return actions;
  }

  void apply(const Action& action) {
    num_disturbances_ += action.kind == Action::kAdvance ? 0 : 1;
    switch (action.kind) {
      case Action::kAdvance: advance(action.which); break;
      case Action::kEvictBlock: forget(index_.remove_block(BlockId(action.which), MissReason::kEvicted)); break;
      case Action::kEvictGroup: {
        State& state = states_[action.which];
        state.groups.erase(action.part);
        if (!state.is_told) break;  // its sequence finds it incomplete
        forget(index_.remove_checkpoint(CheckpointId(action.which), MissReason::kEvicted));
        break;
      }
      case Action::kQuarantine: quarantine(action.part); break;
    }
    check();
  }

  // Everything that later steps depend on.
  std::string signature() const {
    std::string text = std::to_string(num_disturbances_);
    for (const Sequence& sequence : sequences_) {
      text += "/" + std::to_string(sequence.unit) + std::to_string(sequence.stage) + (sequence.is_done ? "d" : "") +
              (sequence.is_admitted ? "a" : "");
      for (const auto* node : sequence.nodes)
        text += index_.is_cut_off(node) ? "c" : index_.has_latents(node) ? "l" : ".";
    }
    for (const auto& [block, rows] : rows_) text += " b" + std::to_string(block) + rows;
    for (const auto& [checkpoint, state] : states_) {
      text += " s" + std::to_string(checkpoint) + (state.is_told ? "t" : "");
      for (const int group : state.groups) text += std::to_string(group);
    }
    return text + " g" + std::to_string(index_.num_ghosts()) + "h" + std::to_string(index_.num_held());
  }

  bool is_finished() const { return sequences_[0].is_done && sequences_[1].is_done; }

  void finish() {
    for (int s = 0; s < kSequences; ++s) {
      if (sequences_[s].is_admitted && !sequences_[s].is_done) release(sequences_[s]);
    }
    EXPECT_EQ(index_.num_held(), 0);
    EXPECT_EQ(index_.audit().message(), "");
  }

 private:
  struct Sequence {
    bool is_admitted = false;
    bool is_done = false;
    int64_t unit = 0;  // computed so far
    int stage = 0;     // groups of the state behind it that were copied
    std::vector<PrefixIndex::Node*> nodes;
  };
  struct State {
    std::string prefix;
    std::set<int> groups;  // written and not evicted
    bool is_told = false;  // to the index
  };

  // One action of a sequence: admission, a unit's latents, a group of its state, the end.
  void advance(int s) {
    Sequence& sequence = sequences_[s];
    const std::string& prompt = scenario_.prompts[s];
    const CacheScope scope{"", "owner"};
    if (!sequence.is_admitted) {
      sequence.is_admitted = true;
      sequence.unit = index_.lookup(token_ids(prompt), scope).match.hit_tokens;
      sequence.stage = kGroups;
      sequence.nodes.push_back(index_.root(scope));
      for (int64_t unit = 0; unit < kUnits; ++unit) {
        sequence.nodes.push_back(
            index_.extend(sequence.nodes.back(), token_ids(prompt.substr(static_cast<size_t>(unit), 1))));
        if (unit < sequence.unit) {
          index_.credit(sequence.nodes.back(), scope);
        } else {
          index_.announce(sequence.nodes.back(), scope, true);
        }
      }
      return;
    }
    const int checkpoint = s * 2 + static_cast<int>(sequence.unit);
    PrefixIndex::Node* node = sequence.nodes[static_cast<size_t>(sequence.unit)];
    if (sequence.stage < kGroups) {
      State& state = states_[checkpoint];
      state.prefix = prompt.substr(0, static_cast<size_t>(sequence.unit));
      state.groups.insert(sequence.stage++);
      if (sequence.stage < kGroups) return;
      IndexLoss loss;
      state.is_told = state.groups.size() == kGroups &&
                      index_.add_checkpoint(node, CheckpointId(checkpoint), CheckpointReason::kTurn, loss);
      if (!state.is_told) states_.erase(checkpoint);
      forget(loss);
    } else if (sequence.unit < kUnits) {
      const int block = 1 + s * 2 + static_cast<int>(sequence.unit / scenario_.units_per_page);
      ++sequence.unit;
      sequence.stage = 0;
      node = sequence.nodes[static_cast<size_t>(sequence.unit)];
      if (index_.add_latents(node, BlockId(block))) {
        EXPECT_FALSE(index_.is_cut_off(node));
        std::string& rows = rows_[block];
        rows = std::max(rows, prompt.substr(0, static_cast<size_t>(sequence.unit)));
      }
      index_.credit(node, scope);
      index_.announce(node, scope, false);
    } else {
      release(sequence);
    }
  }

  void release(Sequence& sequence) {
    for (int64_t unit = sequence.unit; unit < kUnits; ++unit) {
      index_.announce(sequence.nodes[static_cast<size_t>(unit) + 1], {"", "owner"}, false);
    }
    for (auto* node : sequence.nodes) index_.give_back(node);
    sequence.nodes.clear();
    sequence.is_done = true;
  }

  void quarantine(int unit) {
    const std::string& prompt = scenario_.prompts[0];
    forget(index_.quarantine(token_ids(prompt), {"", "owner"}, unit));
    const std::string prefix = prompt.substr(0, static_cast<size_t>(unit));
    for (auto& [block, rows] : rows_) {  // a block keeps what lies before
      EXPECT_FALSE(rows.starts_with(prompt.substr(0, prefix.size() + 1)) && scenario_.units_per_page == 1);
      if (rows.starts_with(prompt.substr(0, prefix.size() + 1))) rows = prefix;
    }
  }

  void forget(const IndexLoss& loss) {
    for (const BlockId block : loss.blocks) EXPECT_EQ(rows_.erase(block.value), 1u);
    for (const CheckpointId checkpoint : loss.checkpoints) EXPECT_EQ(states_.erase(checkpoint.value), 1u);
  }

  bool has_rows(const std::string& prefix) const {
    const int64_t page = (static_cast<int64_t>(prefix.size()) - 1) / scenario_.units_per_page;
    for (const auto& [block, rows] : rows_) {
      const int64_t its_page = (static_cast<int64_t>(rows.size()) - 1) / scenario_.units_per_page;
      if (its_page == page && rows.starts_with(prefix)) return true;
    }
    return false;
  }

  void check() const {
    ASSERT_EQ(index_.audit().message(), "");
    for (const auto& [block, rows] : rows_) {  // nothing named hangs in the air
      for (size_t length = 1; length <= rows.size(); ++length) ASSERT_TRUE(has_rows(rows.substr(0, length)));
    }
    for (const std::string& prompt : {scenario_.prompts[0], scenario_.prompts[1], std::string("q??")}) {
      const PrefixLookup found = index_.lookup(token_ids(prompt), {"", "owner"});
      expect_well_formed(found.match);
      int64_t hit = 0;
      for (const auto& [id, state] : states_) {
        const bool is_there = state.is_told && state.groups.size() == kGroups && prompt.starts_with(state.prefix) &&
                              has_rows(state.prefix);
        if (is_there) hit = std::max(hit, static_cast<int64_t>(state.prefix.size()));
      }
      ASSERT_EQ(found.match.hit_tokens, hit);
      for (size_t page = 0; page < found.pages.size(); ++page) {
        const auto end = std::min((page + 1) * static_cast<size_t>(scenario_.units_per_page), static_cast<size_t>(hit));
        const auto rows = rows_.find(found.pages[page].value);
        ASSERT_TRUE(rows != rows_.end() && rows->second.starts_with(prompt.substr(0, end)));
      }
      ASSERT_EQ(found.checkpoint.has_value(), hit > 0);
      if (!found.checkpoint) continue;
      const State& state = states_.at(found.checkpoint->value);
      ASSERT_EQ(state.prefix, prompt.substr(0, static_cast<size_t>(hit)));
      ASSERT_EQ(state.groups.size(), static_cast<size_t>(kGroups));
    }
  }

  const Scenario& scenario_;
  PrefixIndex index_;
  Sequence sequences_[kSequences];
  std::map<int, std::string> rows_;  // published blocks: the tokens up to the last row
  std::map<int, State> states_;
  int64_t num_disturbances_ = 0;
};

// Every state once, by the shortest way to it: a state is reached anew by repeating that way.
void explore(const Scenario& scenario, int64_t& num_states, int64_t& num_ends) {
  std::set<std::string> known;
  std::vector<std::vector<Action>> frontier = {{}};
  while (!frontier.empty() && !::testing::Test::HasFailure()) {
    std::vector<std::vector<Action>> next;
    for (const std::vector<Action>& way : frontier) {
      std::vector<Action> actions;
      {
        Model model(scenario);
        for (const Action& action : way) model.apply(action);
        actions = model.possible();
        num_ends += model.is_finished() ? 1 : 0;
      }
      for (const Action& action : actions) {
        Model model(scenario);
        for (const Action& step : way) model.apply(step);
        model.apply(action);
        if (!known.insert(model.signature()).second) continue;
        next.push_back(way);
        next.back().push_back(action);
      }
    }
    frontier = std::move(next);
  }
  num_states += static_cast<int64_t>(known.size());
}

void expect_laws_hold(const char* first, const char* second, int64_t max_disturbances) {
  for (const int64_t units_per_page : {1, 2}) {
    int64_t num_states = 0;
    int64_t num_ends = 0;
    Scenario scenario{
        .prompts = {first, second}, .units_per_page = units_per_page, .max_disturbances = max_disturbances};
    explore(scenario, num_states, num_ends);
    ::testing::Test::RecordProperty(cat("states_at_", units_per_page, "_units_per_page"), cat(num_states));
    EXPECT_GT(num_states, 300);
    EXPECT_GT(num_ends, 0);
  }
}

TEST(PrefixIndexModel, TwoSequencesOfTheSamePrompt) { expect_laws_hold("xy?", "xy?", effort(2)); }
TEST(PrefixIndexModel, TwoSequencesThatPart) { expect_laws_hold("xy?", "xz?", effort(2)); }

}  // namespace
}  // namespace tandem::test
