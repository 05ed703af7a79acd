// The prefix index against an oracle that knows no tree: random families of prompts, everything taken away at any time.
#include <gtest/gtest.h>

#include "cache/prefix_world.h"
#include "support/effort.h"

namespace tandem::test {
namespace {

PrefixIndexOptions small_options() {
  return {.hash_unit = 2,
          .page_tokens = 6,
          .has_kda = true,
          .has_mla = true,
          .identity = "model",
          .max_ghosts = 1 << 20,
          .checkpoints_per_chain = 2};
}

void run_world(const PrefixIndexOptions& options, const PrefixWorld::Limits& limits, int64_t steps, uint64_t seed,
               ChainHash* chain_hash = &chain_prefix_hash) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  PrefixWorld world(options, limits, seed, chain_hash);
  for (int64_t i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("step " + std::to_string(i));
    world.step();
  }
}

TEST(PrefixIndexLaw, HitsAndExplanationsAreTheOracles) {
  for (uint64_t seed = 1; seed <= 20; ++seed) run_world(small_options(), {}, effort(1500), seed);
}

}  // namespace
}  // namespace tandem::test
