// What the prefix index keeps, lets go and cuts off: ghosts, retention, quarantine.
#include <gtest/gtest.h>

#include "cache/prefix_world.h"

namespace tandem::test {
namespace {

using Node = PrefixIndex::Node;
const CacheScope kScope{"", "ann"};

// Units of one token: a prefix is its text.
class PrefixLife : public ::testing::Test {
 protected:
  PrefixLife() : index_(options()) {}
  ~PrefixLife() override { EXPECT_EQ(index_.audit().message(), ""); }

  static PrefixIndexOptions options() {
    return {.hash_unit = 1,
            .page_tokens = 1,
            .has_kda = true,
            .has_mla = true,
            .identity = "",
            .max_ghosts = 4,
            .checkpoints_per_chain = 4};
  }

  std::vector<Node*> hold(std::string_view tokens) {
    std::vector<Node*> nodes = {index_.root(kScope)};
    for (size_t i = 0; i < tokens.size(); ++i)
      nodes.push_back(index_.extend(nodes.back(), token_ids(tokens.substr(i, 1))));
    return nodes;
  }
  void release(const std::vector<Node*>& nodes) {
    for (Node* node : nodes) index_.give_back(node);
  }
  void write(std::string_view tokens) {
    const std::vector<Node*> nodes = hold(tokens);
    for (size_t i = 1; i < nodes.size(); ++i) {
      EXPECT_TRUE(index_.has_latents(nodes[i]) || index_.add_latents(nodes[i], BlockId(++last_block_)));
      index_.credit(nodes[i], kScope);
    }
    release(nodes);
  }
  // The positions whose checkpoints retention drops.
  std::vector<int32_t> checkpoint(std::string_view tokens, CheckpointReason reason) {
    write(tokens);
    const std::vector<Node*> nodes = hold(tokens);
    IndexLoss loss;
    // Named after its place: two branches have different first digits.
    EXPECT_TRUE(index_.add_checkpoint(nodes.back(), id(tokens), reason, loss));
    release(nodes);
    std::vector<int32_t> dropped;
    for (const CheckpointId checkpoint : loss.checkpoints) dropped.push_back(checkpoint.value);
    EXPECT_TRUE(loss.blocks.empty());
    return dropped;
  }
  static CheckpointId id(std::string_view tokens) {
    return CheckpointId(static_cast<int32_t>(tokens.size()) + 100 * (tokens.back() - 'a'));
  }
  PrefixMatch match(std::string_view tokens) const { return index_.lookup(token_ids(tokens), kScope).match; }

  PrefixIndex index_;
  int32_t last_block_ = 0;
};

TEST_F(PrefixLife, GhostsAreBoundedAndTheOldestGoFirst) {
  write("abc");   // blocks 1 to 3
  write("xyzw");  // blocks 4 to 7
  index_.remove_block(BlockId(1), MissReason::kEvicted);
  EXPECT_EQ(index_.num_ghosts(), 3);
  EXPECT_EQ(match("abcd").known_tokens, 3);
  index_.remove_block(BlockId(7), MissReason::kEvicted);
  EXPECT_EQ(match("abcd").known_tokens, 3);
  index_.remove_block(BlockId(6), MissReason::kEvicted);  // the deepest of the oldest goes
  EXPECT_EQ(index_.num_ghosts(), 4);
  EXPECT_EQ(match("abcd").known_tokens, 2);
  EXPECT_EQ(match("xyzw!").known_tokens, 4);
  index_.remove_block(BlockId(4), MissReason::kEvicted);
  EXPECT_EQ(match("abcd").known_tokens, 0);
  EXPECT_EQ(match("xyzw!").known_tokens, 4);
  EXPECT_EQ(index_.num_units(), 0);
}

TEST_F(PrefixLife, AGhostThatIsWrittenAgainIsNone) {
  write("ab");
  index_.remove_block(BlockId(1), MissReason::kEvicted);
  EXPECT_EQ(index_.num_ghosts(), 2);
  write("a");
  EXPECT_EQ(index_.num_ghosts(), 1);
  EXPECT_EQ(match("abc").matched_tokens, 1);
  EXPECT_EQ(match("abc").known_tokens, 2);
}

TEST_F(PrefixLife, HeldNodesStayWhateverIsTakenAway) {
  write("abcdef");
  const std::vector<Node*> nodes = hold("abcdef");
  index_.remove_block(BlockId(1), MissReason::kEvicted);
  EXPECT_EQ(index_.num_ghosts(), 0);
  for (size_t i = 0; i < nodes.size(); ++i) EXPECT_EQ(index_.position(nodes[i]), static_cast<int64_t>(i));
  EXPECT_FALSE(index_.add_latents(nodes[6], BlockId(50)));  // nothing before it is cached any more
  EXPECT_TRUE(index_.add_latents(nodes[1], BlockId(51)));
  release(nodes);
  EXPECT_EQ(index_.num_held(), 0);
  EXPECT_EQ(index_.num_ghosts(), 4);  // five became ghosts
}

TEST_F(PrefixLife, RootsOfUnusedSaltsGo) {
  const std::string tokens = "a";
  for (int i = 0; i < 100; ++i) {
    const CacheScope scope{std::to_string(i), "ann"};
    Node* root = index_.root(scope);
    Node* node = index_.extend(root, token_ids(tokens));
    EXPECT_TRUE(index_.add_latents(node, BlockId(1)));
    index_.credit(node, scope);
    index_.give_back(root);
    index_.give_back(node);
    EXPECT_EQ(index_.remove_block(BlockId(1), MissReason::kEvicted).blocks.size(), 1u);
  }
  EXPECT_EQ(index_.num_ghosts(), 4);
  EXPECT_EQ(index_.num_held(), 0);
}

// Retention: (newest two turns, newest prompt end, junctions, newest interval) stay longest.
TEST_F(PrefixLife, TheOldestOfALongChatGoFirst) {
  const std::string chat(20, 'a');
  const auto at = [&](size_t length, CheckpointReason reason) { return checkpoint(chat.substr(0, length), reason); };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(at(2, CheckpointReason::kPromptEnd), Ids{});
  EXPECT_EQ(at(4, CheckpointReason::kTurn), Ids{});
  EXPECT_EQ(at(6, CheckpointReason::kPromptEnd), Ids{});
  EXPECT_EQ(at(8, CheckpointReason::kTurn), Ids{});
  EXPECT_EQ(at(10, CheckpointReason::kPromptEnd), Ids{2});
  EXPECT_EQ(at(12, CheckpointReason::kTurn), Ids{4});
  EXPECT_EQ(at(3, CheckpointReason::kJunction), Ids{6});
  EXPECT_EQ(at(13, CheckpointReason::kInterval), Ids{10});  // a prompt end before turns, the interval and the junction
  EXPECT_EQ(at(15, CheckpointReason::kInterval), Ids{13});
  EXPECT_EQ(at(17, CheckpointReason::kTurn), Ids{8});
  EXPECT_EQ(index_.num_checkpoints(), 4);
  EXPECT_EQ(match(chat).hit_tokens, 17);
  EXPECT_EQ(match(chat).checkpoints, (std::vector<int64_t>{3, 12, 15, 17}));
}

TEST_F(PrefixLife, BranchesKeepTheirOwnAndShareTheirJunction) {
  checkpoint("aaa", CheckpointReason::kTurn);
  for (const char* tokens : {"aaab", "aaabb", "aaabbb", "aaabbbb"}) checkpoint(tokens, CheckpointReason::kTurn);
  EXPECT_EQ(index_.num_checkpoints(), 4);  // one chain so far: the junction's was dropped as the oldest
  checkpoint("aaa", CheckpointReason::kJunction);
  write("aaac");
  for (const char* tokens : {"aaac", "aaacc", "aaaccc", "aaacccc"}) {
    EXPECT_TRUE(checkpoint(tokens, CheckpointReason::kTurn).empty());
  }
  EXPECT_EQ(checkpoint("aaaccccc", CheckpointReason::kTurn), std::vector<int32_t>{id("aaac").value});
  EXPECT_EQ(match("aaad").hit_tokens, 3);
}

TEST_F(PrefixLife, DominatedIsWhatADeeperStateOfTheSameBranchCovers) {
  checkpoint("aa", CheckpointReason::kTurn);
  checkpoint("aaaa", CheckpointReason::kTurn);
  EXPECT_TRUE(index_.is_dominated(id("aa")));
  EXPECT_FALSE(index_.is_dominated(id("aaaa")));
  EXPECT_FALSE(index_.is_dominated(CheckpointId(999)));
  write("aaab");  // a branch between the two: what resumes there has no other state than the first
  EXPECT_FALSE(index_.is_dominated(id("aa")));
  checkpoint("aaa", CheckpointReason::kJunction);
  EXPECT_TRUE(index_.is_dominated(id("aa")));
  EXPECT_FALSE(index_.is_dominated(id("aaa")));
}

TEST_F(PrefixLife, QuarantineCutsOffWhoComputedOnIt) {
  write("abcd");
  checkpoint("ab", CheckpointReason::kTurn);
  checkpoint("abcd", CheckpointReason::kTurn);
  const std::vector<Node*> poisoned = hold("abcd");
  const IndexLoss loss = index_.quarantine(token_ids("abcd"), kScope, 2);
  EXPECT_EQ(loss.blocks, (std::vector<BlockId>{BlockId(3), BlockId(4)}));
  EXPECT_EQ(loss.checkpoints, std::vector<CheckpointId>{id("abcd")});
  EXPECT_EQ(match("abcde").hit_tokens, 2);
  EXPECT_EQ(match("abcde").known_tokens, 4);
  EXPECT_EQ(match("abcde").missed[0], (MissedRange{2, 4, MissReason::kQuarantined}));

  // Somebody computes it anew; who stands on the old latents still publishes nothing.
  write("abcd");
  EXPECT_EQ(match("abcde").matched_tokens, 4);
  EXPECT_TRUE(index_.is_cut_off(poisoned[3]) && index_.is_cut_off(poisoned[4]));
  Node* behind = index_.extend(poisoned[4], token_ids("e"));
  index_.announce(behind, kScope, true);
  EXPECT_FALSE(index_.add_latents(behind, BlockId(90)));
  IndexLoss none;
  EXPECT_FALSE(index_.add_checkpoint(behind, CheckpointId(90), CheckpointReason::kTurn, none));
  EXPECT_FALSE(index_.add_checkpoint(poisoned[4], CheckpointId(91), CheckpointReason::kTurn, none));
  index_.credit(behind, kScope);
  EXPECT_EQ(match("abcdef").known_tokens, 4);
  EXPECT_EQ(match("abcdef").missed[1].reason, MissReason::kNeverSeen);
  index_.announce(behind, kScope, false);
  index_.give_back(behind);
  release(poisoned);
  EXPECT_EQ(index_.num_held(), 0);
  EXPECT_TRUE(none.empty());
}

TEST_F(PrefixLife, QuarantineOfWhatIsNotKnownDoesNothing) {
  write("ab");
  EXPECT_TRUE(index_.quarantine(token_ids("ax"), kScope, 1).empty());
  EXPECT_TRUE(index_.quarantine(token_ids("ab"), kScope, 2).empty());
  EXPECT_TRUE(index_.quarantine(token_ids("ab"), {"salt", "ann"}, 0).empty());
  EXPECT_EQ(match("abc").matched_tokens, 2);
}

TEST(CheckpointReasons, HaveNames) {
  EXPECT_EQ(checkpoint_reason_name(CheckpointReason::kPromptEnd), "prompt_end");
  EXPECT_EQ(checkpoint_reason_name(CheckpointReason::kPromptEndInclusive), "prompt_end_inclusive");
  EXPECT_EQ(checkpoint_reason_name(CheckpointReason::kTurn), "turn");
  EXPECT_EQ(checkpoint_reason_name(CheckpointReason::kJunction), "junction");
  EXPECT_EQ(checkpoint_reason_name(CheckpointReason::kInterval), "interval");
  EXPECT_EQ(miss_reason_name(MissReason::kNotYetWritten), "not_yet_written");
  EXPECT_EQ(miss_reason_name(MissReason::kNoCheckpoint), "no_checkpoint");
}

}  // namespace
}  // namespace tandem::test
