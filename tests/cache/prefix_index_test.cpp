#include "cache/prefix_index.h"

#include <gtest/gtest.h>

TEST(PrefixIndexSmoke, Works) {
  using namespace tandem;
  PrefixIndexOptions o{.hash_unit = 2,
                       .page_tokens = 4,
                       .has_kda = true,
                       .has_mla = true,
                       .identity = "m",
                       .max_ghosts = 10,
                       .checkpoints_per_chain = 4};
  PrefixIndex index(o);
  CacheScope scope{"", "me"};
  std::vector<TokenId> t;
  for (int i = 0; i < 7; ++i) t.emplace_back(i);
  auto* r = index.root(scope);
  auto* a = index.extend(r, std::span(t).subspan(0, 2));
  auto* b = index.extend(a, std::span(t).subspan(2, 2));
  auto* c = index.extend(b, std::span(t).subspan(4, 2));
  IndexLoss loss;
  EXPECT_TRUE(index.add_latents(b, BlockId(1)));
  EXPECT_TRUE(index.add_latents(c, BlockId(2)));
  EXPECT_TRUE(index.add_checkpoint(c, CheckpointId(7), CheckpointReason::kTurn, loss));
  for (auto* n : {a, b, c}) index.credit(n, scope);
  EXPECT_EQ(index.audit().message(), "");
  auto l = index.lookup(t, scope);
  EXPECT_EQ(l.match.hit_tokens, 6);
  EXPECT_EQ(l.pages.size(), 2u);
  for (auto* n : {a, b, c, r}) index.give_back(n);
  auto x = index.remove_block(BlockId(1), MissReason::kEvicted);
  EXPECT_EQ(x.blocks.size(), 2u);
  EXPECT_EQ(x.checkpoints.size(), 1u);
  EXPECT_EQ(index.audit().message(), "");
  EXPECT_EQ(index.num_ghosts(), 3);
  EXPECT_EQ(index.lookup(t, scope).match.known_tokens, 6);
}
