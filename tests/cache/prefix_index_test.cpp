#include "cache/prefix_index.h"

#include <gtest/gtest.h>

#include <string>

#include "cache/prefix_world.h"

namespace tandem::test {
namespace {

using Node = PrefixIndex::Node;

PrefixIndexOptions options_of(int64_t unit, int64_t page) {
  return {.hash_unit = unit,
          .page_tokens = page,
          .has_kda = true,
          .has_mla = true,
          .identity = "model",
          .max_ghosts = 1000,
          .checkpoints_per_chain = 4};
}

// An index that is told of prefixes as text, a token a character.
class PrefixIndexTest : public ::testing::Test {
 protected:
  static constexpr int64_t kUnit = 4;

  explicit PrefixIndexTest(const PrefixIndexOptions& options = options_of(kUnit, 2 * kUnit))
      : options_(options), index_(options) {}
  ~PrefixIndexTest() override { EXPECT_EQ(index_.audit().message(), ""); }

  // Computes the whole units of a prompt behind what is cached of it, with states at the positions told, and leaves.
  void write(const std::string& tokens, const std::vector<int64_t>& checkpoints, const CacheScope& scope = {"", "ann"},
             CheckpointReason reason = CheckpointReason::kTurn) {
    std::vector<Node*> nodes = hold(tokens, scope);
    const int64_t u = options_.hash_unit;
    bool has_block = false;
    for (size_t i = 1; i < nodes.size(); ++i) {
      if (options_.has_mla && !index_.has_latents(nodes[i])) {
        if (!has_block || (static_cast<int64_t>(i) - 1) * u % options_.page_tokens == 0) ++last_block_;
        has_block = true;
        EXPECT_TRUE(index_.add_latents(nodes[i], BlockId(last_block_)));
      }
      index_.credit(nodes[i], scope);
      if (std::count(checkpoints.begin(), checkpoints.end(), static_cast<int64_t>(i) * u) > 0) {
        EXPECT_TRUE(index_.add_checkpoint(nodes[i], CheckpointId(++last_checkpoint_), reason, loss_));
      }
    }
    release(nodes);
  }

  std::vector<Node*> hold(const std::string& tokens, const CacheScope& scope = {"", "ann"}) {
    std::vector<Node*> nodes = {index_.root(scope)};
    const std::vector<TokenId> ids = token_ids(tokens);
    const size_t u = static_cast<size_t>(options_.hash_unit);
    for (size_t begin = 0; begin + u <= ids.size(); begin += u) {
      nodes.push_back(index_.extend(nodes.back(), std::span(ids).subspan(begin, u)));
    }
    return nodes;
  }
  void release(const std::vector<Node*>& nodes) {
    for (Node* node : nodes) index_.give_back(node);
  }

  PrefixMatch match(const std::string& tokens, const CacheScope& scope = {"", "ann"}) const {
    PrefixMatch found = index_.lookup(token_ids(tokens), scope).match;
    expect_well_formed(found);
    return found;
  }
  std::vector<MissedRange> missed(const std::string& tokens, const CacheScope& scope = {"", "ann"}) const {
    return match(tokens, scope).missed;
  }
  std::string expected_text(const PrefixMatch& found) const {
    std::string text;
    if (!found.divergence) return text;
    for (const TokenId token : found.divergence->expected_tokens) text.push_back(static_cast<char>(token.value));
    return text;
  }

  PrefixIndexOptions options_;
  PrefixIndex index_;
  IndexLoss loss_;
  int32_t last_block_ = 0;
  int32_t last_checkpoint_ = 0;
};

// Hashes ------------------------------------------------------------------------------------------------------------

TEST(PrefixHash, ScopesAndOrderAreApart) {
  EXPECT_NE(hash_prefix_root("ab", 4, "c"), hash_prefix_root("a", 4, "bc"));
  EXPECT_NE(hash_prefix_root("a", 4, ""), hash_prefix_root("a", 8, ""));
  EXPECT_EQ(hash_prefix_root("a", 4, "s"), hash_prefix_root("a", 4, "s"));
  const PrefixHash root = hash_prefix_root("a", 4, "");
  const PrefixHash x = hash_prefix_unit(token_ids("xxxx"));
  const PrefixHash y = hash_prefix_unit(token_ids("yyyy"));
  EXPECT_NE(chain_prefix_hash(chain_prefix_hash(root, x), y), chain_prefix_hash(chain_prefix_hash(root, y), x));
  EXPECT_NE(chain_prefix_hash(root, x), chain_prefix_hash(x, root));
}

TEST_F(PrefixIndexTest, ANodesHashIsItsChain) {
  const std::vector<Node*> nodes = hold("aaaabbbb", {"salt", "ann"});
  const PrefixHash first =
      chain_prefix_hash(hash_prefix_root("model", kUnit, "salt"), hash_prefix_unit(token_ids("aaaa")));
  EXPECT_EQ(index_.hash(nodes[1]), first);
  EXPECT_EQ(index_.hash(nodes[2]), chain_prefix_hash(first, hash_prefix_unit(token_ids("bbbb"))));
  release(nodes);
}

// Hits --------------------------------------------------------------------------------------------------------------

// Five units of a 6144-token page of twelve, a state at 2560: resumed there, from one page.
TEST(PrefixIndex, ResumesInsideALargePage) {
  PrefixIndex index(options_of(512, 6144));
  const CacheScope scope{"", "ann"};
  std::vector<TokenId> prompt;
  for (int32_t i = 0; i < 3000; ++i) prompt.emplace_back(i * 7);
  std::vector<Node*> nodes = {index.root(scope)};
  for (size_t begin = 0; begin + 512 <= prompt.size(); begin += 512) {
    nodes.push_back(index.extend(nodes.back(), std::span(prompt).subspan(begin, 512)));
  }
  ASSERT_EQ(index.position(nodes.back()), 2560);
  IndexLoss loss;
  ASSERT_TRUE(index.add_latents(nodes.back(), BlockId(9)));
  ASSERT_TRUE(index.add_checkpoint(nodes.back(), CheckpointId(4), CheckpointReason::kPromptEnd, loss));
  const PrefixLookup found = index.lookup(prompt, scope);
  EXPECT_EQ(found.match.hit_tokens, 2560);
  EXPECT_EQ(found.pages, std::vector<BlockId>{BlockId(9)});
  EXPECT_EQ(found.checkpoint, CheckpointId(4));
  for (Node* node : nodes) index.give_back(node);
  EXPECT_EQ(index.num_held(), 0);
}

// The prompt is a whole number of units: with both states, the same prompt again hits a unit less, a longer one all.
TEST_F(PrefixIndexTest, PromptsAroundAUnitsBoundary) {
  for (const int64_t n : {7, 8, 9, 15, 16, 17}) {
    const std::string prompt(static_cast<size_t>(n), static_cast<char>('a' + n));
    std::vector<int64_t> checkpoints = {(n - 1) / kUnit * kUnit};
    if (n % kUnit == 0) checkpoints.push_back(n);
    write(prompt, checkpoints);
    EXPECT_EQ(match(prompt).hit_tokens, (n - 1) / kUnit * kUnit) << n;
    EXPECT_EQ(match(prompt + "!").hit_tokens, n / kUnit * kUnit) << n;
    EXPECT_EQ(match(prompt + "!!").hit_tokens, n / kUnit * kUnit) << n;
    EXPECT_EQ(match(prompt.substr(0, prompt.size() - 1)).hit_tokens,
              (n - 1) / kUnit * kUnit == n - 1 ? 0 : (n - 1) / kUnit * kUnit)
        << n;
  }
}

TEST_F(PrefixIndexTest, EmptyAndShortPrompts) {
  write("aaaabbbb", {8});
  EXPECT_TRUE(missed("").empty());
  EXPECT_EQ(missed("aaa"), (std::vector<MissedRange>{{0, 3, MissReason::kShorterThanUnit}}));
  EXPECT_FALSE(match("aaa").divergence);
}

// A block holds the rows of its page before the unit it is told for, so it stands in for them.
TEST_F(PrefixIndexTest, ACopiedPageOutlivesItsDonor) {
  write("aaaa", {4});  // block 1
  std::vector<Node*> nodes = hold("aaaabbbb");
  ASSERT_TRUE(index_.add_latents(nodes[2], BlockId(77)));  // copied the first unit, wrote the second
  EXPECT_EQ(index_.lookup(token_ids("aaaac"), {"", "ann"}).pages, std::vector<BlockId>{BlockId(1)});
  const IndexLoss loss = index_.remove_block(BlockId(1), MissReason::kEvicted);
  EXPECT_EQ(loss.blocks, std::vector<BlockId>{BlockId(1)});
  EXPECT_TRUE(loss.checkpoints.empty());
  EXPECT_EQ(index_.lookup(token_ids("aaaac"), {"", "ann"}).pages, std::vector<BlockId>{BlockId(77)});
  release(nodes);
}

TEST_F(PrefixIndexTest, WhatStandsOnARemovedPageIsReported) {
  write("aaaabbbbccccddddeeee", {8, 16, 20});
  write("aaaabbbbccccddddffff", {20});
  const IndexLoss loss = index_.remove_block(BlockId(2), MissReason::kEvicted);  // the second page
  EXPECT_EQ(loss.blocks.size(), 3u);                                             // and the third pages of both
  EXPECT_EQ(loss.checkpoints.size(), 3u);
  EXPECT_EQ(index_.named_blocks(), std::vector<BlockId>{BlockId(1)});
  EXPECT_EQ(index_.num_units(), 2);
  EXPECT_EQ(index_.num_ghosts(), 4);
  EXPECT_TRUE(index_.remove_block(BlockId(3), MissReason::kEvicted).empty());
}

TEST_F(PrefixIndexTest, ASecondStateAtOnePlaceIsRefused) {
  write("aaaa", {4});
  const std::vector<Node*> nodes = hold("aaaabbbb");
  EXPECT_FALSE(index_.add_checkpoint(nodes[1], CheckpointId(50), CheckpointReason::kTurn, loss_));
  EXPECT_FALSE(index_.add_checkpoint(nodes[2], CheckpointId(51), CheckpointReason::kTurn, loss_));  // no latents
  EXPECT_EQ(index_.checkpoint_at(nodes[1]), CheckpointId(1));
  EXPECT_EQ(index_.num_checkpoints(), 1);
  release(nodes);
}

// Explanations ------------------------------------------------------------------------------------------------------

TEST_F(PrefixIndexTest, EveryReasonWhereItHolds) {
  using R = std::vector<MissedRange>;
  write("aaaabbbbcccc", {4});
  EXPECT_EQ(missed("aaaabbbbccccddddee"), (R{{4, 12, MissReason::kNoCheckpoint},
                                             {12, 16, MissReason::kNeverSeen},
                                             {16, 18, MissReason::kShorterThanUnit}}));
  // The last unit of a prompt that is all cached: no state could have made it shorter than that.
  EXPECT_EQ(missed("aaaabbbbcccc"), (R{{4, 8, MissReason::kNoCheckpoint}, {8, 12, MissReason::kLastToken}}));
  EXPECT_EQ(missed("aaaabbbbccccddddee", {"other", "ann"}),
            (R{{0, 12, MissReason::kSalt}, {12, 16, MissReason::kNeverSeen}, {16, 18, MissReason::kShorterThanUnit}}));
  index_.remove_checkpoint(CheckpointId(1), MissReason::kEvicted);
  EXPECT_EQ(
      missed("aaaabbbbccccd"),
      (R{{0, 4, MissReason::kEvicted}, {4, 12, MissReason::kNoCheckpoint}, {12, 13, MissReason::kShorterThanUnit}}));
  index_.remove_block(BlockId(2), MissReason::kEvicted);
  EXPECT_EQ(missed("aaaabbbbccccd"), (R{{0, 4, MissReason::kEvicted},
                                        {4, 8, MissReason::kNoCheckpoint},
                                        {8, 12, MissReason::kEvicted},
                                        {12, 13, MissReason::kShorterThanUnit}}));
  index_.quarantine(token_ids("aaaabbbbcccc"), {"", "ann"}, 5);
  EXPECT_EQ(
      missed("aaaabbbbccccd"),
      (R{{0, 4, MissReason::kEvicted}, {4, 12, MissReason::kQuarantined}, {12, 13, MissReason::kShorterThanUnit}}));
  const std::vector<Node*> nodes = hold("aaaabbbbccccdddd");
  for (const size_t unit : {2, 3, 4}) index_.announce(nodes[unit], {"", "ann"}, true);
  EXPECT_EQ(missed("aaaabbbbccccddddeeee"),
            (R{{0, 4, MissReason::kEvicted}, {4, 16, MissReason::kNotYetWritten}, {16, 20, MissReason::kNeverSeen}}));
  EXPECT_EQ(match("aaaabbbbccccddddeeee").known_tokens, 12);
  for (const size_t unit : {2, 3, 4}) index_.announce(nodes[unit], {"", "ann"}, false);
  release(nodes);
}

TEST_F(PrefixIndexTest, AnnouncementsAreCounted) {
  const CacheScope scope{"", "ann"};
  const std::vector<Node*> first = hold("aaaab");
  const std::vector<Node*> second = hold("aaaac");
  index_.announce(first[1], scope, true);
  index_.announce(second[1], scope, true);
  index_.announce(first[1], scope, false);
  release(first);
  EXPECT_EQ(missed("aaaad")[0].reason, MissReason::kNotYetWritten);
  EXPECT_EQ(match("aaaad").hit_tokens, 0);
  index_.announce(second[1], scope, false);
  EXPECT_EQ(missed("aaaad")[0].reason, MissReason::kNeverSeen);
  release(second);
  EXPECT_EQ(index_.num_held(), 0);
  EXPECT_EQ(index_.num_ghosts(), 0);  // never written: nothing to remember
}

TEST_F(PrefixIndexTest, TheDivergenceIsTheFirstTokenThatDiffers) {
  write("aaaabbbbccccdddd", {8, 16});
  const PrefixMatch found = match("aaaabbbbccXcdddde");
  ASSERT_TRUE(found.divergence);
  EXPECT_EQ(found.divergence->position, 10);
  EXPECT_EQ(found.divergence->found, TokenId('X'));
  EXPECT_EQ(found.divergence->expected, TokenId('c'));
  EXPECT_EQ(expected_text(found), "ccdd");  // a unit of it, over the node's end
  EXPECT_EQ(found.hit_tokens, 8);
  EXPECT_EQ(found.hit_without_divergence, 16);
  EXPECT_EQ(found.missed,
            (std::vector<MissedRange>{{8, 16, MissReason::kNeverSeen}, {16, 17, MissReason::kShorterThanUnit}}));
  // At most what the prompt's own length can hit.
  EXPECT_EQ(match("aaaabbbbccXcdddd").hit_without_divergence, 8);
  // At the very start.
  ASSERT_TRUE(match("zaaabbbb").divergence);
  EXPECT_EQ(match("zaaabbbb").divergence->position, 0);
  EXPECT_EQ(expected_text(match("zaaabbbb")), "aaaa");
}

TEST_F(PrefixIndexTest, NoDivergenceInAPartOrAnExtension) {
  write("aaaabbbbcccc", {8});
  for (const char* prompt : {"aaaabbbbccccdddd", "aaaabbbbcccc", "aaaabbbbcc", "aaaabbbb", "aa", ""}) {
    EXPECT_FALSE(match(prompt).divergence) << prompt;
    EXPECT_EQ(match(prompt).hit_without_divergence, 0) << prompt;
  }
  ASSERT_TRUE(match("aaaabbbbcX").divergence);  // the tail is no unit and differs all the same
  EXPECT_EQ(match("aaaabbbbcX").divergence->position, 9);
}

TEST_F(PrefixIndexTest, TheClosestChildAndOfEqualsTheMostRecent) {
  write("aaaabbbx", {});
  write("aaaabbyy", {});
  write("aaaabbzz", {});
  EXPECT_EQ(expected_text(match("aaaabbbw")), "x");
  EXPECT_EQ(expected_text(match("aaaabbww")), "zz");
  match("aaaabbyyyy");  // looking changes nothing
  EXPECT_EQ(expected_text(match("aaaabbww")), "zz");
  write("aaaabbyy", {});
  EXPECT_EQ(expected_text(match("aaaabbww")), "yy");
  index_.remove_block(BlockId(1), MissReason::kEvicted);  // a ghost is as close as it was
  EXPECT_EQ(expected_text(match("aaaabbbw")), "x");
}

// Privacy -----------------------------------------------------------------------------------------------------------

TEST_F(PrefixIndexTest, AnotherOwnerSeesTheHitAndNothingElse) {
  write("aaaabbbbccccdddd", {4, 8});
  const CacheScope stranger{"", "bob"};
  const PrefixMatch found = match("aaaabbbbccccddddee", stranger);
  EXPECT_EQ(found.hit_tokens, 8);
  EXPECT_EQ(found.matched_tokens, 8);
  EXPECT_EQ(found.known_tokens, 8);
  EXPECT_EQ(found.checkpoints, std::vector<int64_t>{8});
  EXPECT_EQ(found.missed,
            (std::vector<MissedRange>{{8, 16, MissReason::kNeverSeen}, {16, 18, MissReason::kShorterThanUnit}}));
  EXPECT_EQ(index_.lookup(token_ids("aaaabbbbccccddddee"), stranger).latent_tokens, 16);
  EXPECT_FALSE(match("aaaabbbbccXX", stranger).divergence);
  EXPECT_EQ(missed("aaaab", {"other", "bob"})[0].reason, MissReason::kNeverSeen);
  index_.remove_block(BlockId(1), MissReason::kEvicted);
  EXPECT_EQ(missed("aaaab", stranger)[0].reason, MissReason::kNeverSeen);
  EXPECT_EQ(missed("aaaab")[0].reason, MissReason::kEvicted);
}

// Asking for a guessed prompt and leaving before it is computed must not show who computed it, or when.
TEST_F(PrefixIndexTest, AGuessedPromptTellsNothing) {
  const CacheScope stranger{"", "bob"};
  const auto ask = [&](const std::string& guess) {
    const std::vector<Node*> nodes = hold(guess, stranger);
    for (size_t i = 1; i < nodes.size(); ++i) index_.announce(nodes[i], stranger, true);
    const PrefixMatch waiting = match(guess, stranger);
    for (size_t i = 1; i < nodes.size(); ++i) index_.announce(nodes[i], stranger, false);
    release(nodes);
    const PrefixMatch after = match(guess, stranger);
    return std::pair(waiting, after);
  };
  const auto before = ask("secretsecret");
  write("secretsecret", {12});  // the hit would need a token more
  std::vector<Node*> computing = hold("secretsecretmore");
  index_.announce(computing[4], {"", "ann"}, true);
  const auto behind = ask("secretsecret");
  EXPECT_NO_FATAL_FAILURE(expect_equal(behind.first, before.first));
  EXPECT_NO_FATAL_FAILURE(expect_equal(behind.second, before.second));
  EXPECT_EQ(missed("secretsecretmore!", stranger)[0].reason, MissReason::kNeverSeen);
  index_.announce(computing[4], {"", "ann"}, false);
  release(computing);
}

TEST_F(PrefixIndexTest, OnlyTheNewestOwnersOfAUnitHearOfIt) {
  for (int64_t i = 0; i <= kMaxOwnersPerUnit; ++i) write("aaaa", {}, {"", "owner" + std::to_string(i)});
  EXPECT_EQ(match("aaaab", {"", "owner0"}).known_tokens, 0);
  EXPECT_EQ(match("aaaab", {"", "owner1"}).known_tokens, 4);
  EXPECT_EQ(match("aaaab", {"", "owner" + std::to_string(kMaxOwnersPerUnit)}).known_tokens, 4);
}

TEST_F(PrefixIndexTest, SaltsNeverMeet) {
  write("aaaabbbb", {4, 8}, {"one", "ann"});
  EXPECT_EQ(match("aaaabbbbc", {"one", "bob"}).hit_tokens, 8);
  EXPECT_EQ(match("aaaabbbbc", {"two", "ann"}).hit_tokens, 0);
  EXPECT_EQ(match("aaaabbbbc", {"", "ann"}).hit_tokens, 0);
}

}  // namespace
}  // namespace tandem::test
