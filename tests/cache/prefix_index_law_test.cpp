// The prefix index against an oracle that knows no tree: random families of prompts (stems cut around units and pages,
// forks, two salts, two owners), and blocks, checkpoints and whole chains taken away at any time.
#include <gtest/gtest.h>

#include <algorithm>

#include "cache/prefix_world.h"
#include "support/effort.h"

namespace tandem::test {
namespace {

using Limits = PrefixWorld::Limits;

PrefixIndexOptions small_options() {
  return {.hash_unit = 2,
          .page_tokens = 6,
          .has_kda = true,
          .has_mla = true,
          .identity = "model",
          .max_ghosts = 1 << 20,
          .checkpoints_per_chain = 2};
}

PrefixWorld::Seen run_world(const PrefixIndexOptions& options, const Limits& limits, int64_t steps, uint64_t seed,
                            ChainHash* chain_hash = &chain_prefix_hash) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  PrefixWorld world(options, limits, seed, chain_hash);
  for (int64_t i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("step " + std::to_string(i));
    world.step();
  }
  return world.seen();
}

// Steps of several worlds, each young enough for its oracle to stay small.
PrefixWorld::Seen run_worlds(const PrefixIndexOptions& options, const Limits& limits, int64_t steps, int64_t per_world,
                             uint64_t first_seed, ChainHash* chain_hash = &chain_prefix_hash) {
  PrefixWorld::Seen all;
  for (int64_t done = 0; done < steps && !::testing::Test::HasFailure(); done += per_world) {
    all += run_world(options, limits, std::min(per_world, steps - done), first_seed++, chain_hash);
  }
  return all;
}

int64_t count(const PrefixWorld::Seen& seen, MissReason reason) { return seen.by_reason[static_cast<size_t>(reason)]; }

TEST(PrefixIndexLaw, HitsAndExplanationsAreTheOracles) {
  const auto seen = run_worlds(small_options(), Limits{}, effort(60000), 1500, 1);
  EXPECT_GT(seen.hits, 0);
  for (const int64_t times : seen.by_reason) EXPECT_GT(times, 0);
  EXPECT_GT(seen.divergences_inside, 0);
  EXPECT_GT(seen.divergences, seen.divergences_inside);
  EXPECT_GT(seen.repairs, 0);
  EXPECT_GT(seen.orphans, 0);
  EXPECT_GT(seen.thinned_out, 0);
  EXPECT_GT(seen.dominated, 0);
  EXPECT_GT(seen.refused, 0);
}

TEST(PrefixIndexLaw, AnyRatioOfPageToUnit) {
  uint64_t seed = 1000;
  for (const int64_t units_per_page : {1, 2, 4, 12}) {
    for (const int64_t unit : {1, 3}) {
      PrefixIndexOptions options = small_options();
      options.hash_unit = unit;
      options.page_tokens = unit * units_per_page;
      options.checkpoints_per_chain = 1 + static_cast<int64_t>(seed % 4);
      const auto seen = run_worlds(options, Limits{}, effort(6000), 1500, seed += 100);
      EXPECT_GT(seen.hits, 0);
    }
  }
}

TEST(PrefixIndexLaw, WithoutKdaEveryWholeUnitCanBeResumed) {
  PrefixIndexOptions options = small_options();
  options.has_kda = false;
  const auto seen = run_worlds(options, Limits{}, effort(20000), 1500, 2000);
  EXPECT_GT(seen.hits, 0);
  EXPECT_GT(count(seen, MissReason::kLastToken), 0);
  EXPECT_EQ(count(seen, MissReason::kNoCheckpoint), 0);
}

TEST(PrefixIndexLaw, WithoutMlaCheckpointsAloneAreMatched) {
  PrefixIndexOptions options = small_options();
  options.has_mla = false;
  const int64_t steps = std::max<int64_t>(effort(20000), 9000);  // fewer do not meet every reason
  const auto seen = run_worlds(options, Limits{}, steps, 1500, 3000);
  EXPECT_GT(seen.hits, 0);
  EXPECT_GT(seen.thinned_out, 0);
  for (const int64_t times : seen.by_reason) EXPECT_GT(times, 0);
}

// Ghosts only explain: however few are kept, hits, pages and losses stay the oracle's.
TEST(PrefixIndexLaw, ABoundOnGhostsChangesNoHit) {
  for (const int64_t max_ghosts : {0, 1, 5}) {
    PrefixIndexOptions options = small_options();
    options.max_ghosts = max_ghosts;
    Limits limits;
    limits.explains = false;
    const auto seen = run_worlds(options, limits, effort(20000), 2000, 4000 + static_cast<uint64_t>(max_ghosts) * 50);
    EXPECT_GT(seen.hits, 0);
  }
}

// All keys collide: everything is found by its tokens, and nothing else is.
TEST(PrefixIndexLaw, CollidingHashesGiveNoWrongHit) {
  ChainHash* const constant = [](const PrefixHash&, const PrefixHash&) { return PrefixHash{.low = 7, .high = 7}; };
  const auto seen = run_worlds(small_options(), Limits{}, effort(20000), 1500, 5000, constant);
  EXPECT_GT(seen.hits, 0);
  ChainHash* const two_bits = [](const PrefixHash& parent, const PrefixHash& unit) {
    return PrefixHash{.low = (parent.low ^ unit.low) & 3, .high = 0};
  };
  run_worlds(small_options(), Limits{}, effort(20000), 1500, 6000, two_bits);
}

// A million operations, each followed by the whole audit.
TEST(PrefixIndexLaw, AMillionOperationsUnderAudit) {
  PrefixIndexOptions options = small_options();
  options.max_ghosts = 8;
  Limits limits;
  limits.max_sequences = 3;
  limits.max_blocks = 6;
  limits.max_tokens = 11;
  limits.explains = false;
  const auto seen = run_worlds(options, limits, effort(1000000), 5000, 7000);
  EXPECT_GT(seen.hits, effort(1000));
  EXPECT_GT(seen.orphans, 0);
  EXPECT_GT(seen.refused, 0);
}

}  // namespace
}  // namespace tandem::test
