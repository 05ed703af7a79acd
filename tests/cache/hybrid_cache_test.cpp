// The hybrid cache by itself, under a fake model whose every byte is known (fake_model.h).
#include "cache/hybrid_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "cache/cached_sequence.h"
#include "cache/fake_model.h"

namespace tandem {
namespace {

using test::fake_layout;
using test::FakeModel;

std::vector<TokenId> some_tokens(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.emplace_back(static_cast<int32_t>(random() % 50));
  return tokens;
}

std::vector<TokenId> joined(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A cache over a fake layout, audited in depth by whoever asks.
struct Fixture {
  explicit Fixture(std::string_view kinds, HybridCacheOptions options = {}, DType dtype = DType::kF32)
      : layout(fake_layout(kinds, dtype)), model(layout) {
    if (options.hash_unit == kDefaultHashUnit) options.hash_unit = 16;
    if (options.budget_bytes == 0) options.budget_bytes = int64_t{16} << 20;
    options.checkpoint_interval = options.checkpoint_interval == 32768 ? 0 : options.checkpoint_interval;
    options.identity = "fake";
    auto made = HybridCache::create(layout, options);
    TANDEM_CHECK(made.is_ok(), made.status().message());
    cache = std::move(made).value();
  }
  // Admits, runs to the end in steps of `chunk` and returns the hit.
  int64_t serve(int32_t id, const std::vector<TokenId>& tokens, int64_t chunk = 1 << 30, const CacheScope& scope = {}) {
    const auto match = cache->admit(SeqId(id), tokens, scope, static_cast<int64_t>(tokens.size()));
    EXPECT_TRUE(match.has_value());
    if (!match) return -1;
    EXPECT_TRUE(model.run_to_end(*cache, SeqId(id), tokens, chunk));
    audit();
    return match->hit_tokens;
  }
  int64_t serve_and_release(int32_t id, const std::vector<TokenId>& tokens, int64_t chunk = 1 << 30) {
    const int64_t hit = serve(id, tokens, chunk);
    cache->release(SeqId(id));
    audit();
    return hit;
  }
  // Takes every block there is once, for sequences that share nothing.
  void evict_everything() {
    int32_t id = 1000;
    while (cache->admit(SeqId(id), some_tokens(16, 1), {}, 16, false)) ++id;
    while (--id >= 1000) cache->release(SeqId(id));
    EXPECT_EQ(cache->stats().evictable_blocks, 0);
  }
  void audit() {
    const Status status = cache->audit(true);
    EXPECT_TRUE(status.is_ok()) << status.message();
  }

  CacheLayout layout;
  FakeModel model;
  std::unique_ptr<HybridCache> cache;
};

TEST(HybridCache, AnIdenticalPromptResumesAtItsLastUnit) {
  for (const char* kinds : {"kkkm", "kmkm", "k", "m", "kk", "mm", "kkkmkkkmm"}) {
    SCOPED_TRACE(kinds);
    Fixture f(kinds);
    const auto prompt = some_tokens(100, 1);
    EXPECT_EQ(f.serve_and_release(1, prompt), 0);
    EXPECT_EQ(f.serve_and_release(2, prompt), 96);
    EXPECT_EQ(f.serve_and_release(3, joined(prompt, some_tokens(60, 2)), 16), 96);
    EXPECT_EQ(f.serve_and_release(4, joined(prompt, some_tokens(60, 2))), 144);
  }
}

TEST(HybridCache, TypesOfCacheAndUnsharedPrompts) {
  Fixture f("kkm", {}, DType::kBF16);
  const auto prompt = some_tokens(64, 1);
  EXPECT_EQ(f.serve_and_release(1, prompt), 0);
  EXPECT_EQ(f.serve_and_release(2, prompt), 48);
  // Neither takes from the index nor adds to it.
  const auto other = some_tokens(64, 2);
  for (int32_t id : {3, 4}) {
    ASSERT_TRUE(f.cache->admit(SeqId(id), other, {}, 64, false).has_value());
    EXPECT_TRUE(f.model.run_to_end(*f.cache, SeqId(id), other));
    f.audit();
    f.cache->release(SeqId(id));
  }
  EXPECT_EQ(f.cache->match(other, {}).hit_tokens, 0);
  ASSERT_TRUE(f.cache->admit(SeqId(5), prompt, {}, 64, false).has_value());
  EXPECT_EQ(f.cache->length(SeqId(5)), 0);
  Fixture off("kkm", {.share_prefixes = false});
  EXPECT_EQ(off.serve_and_release(1, prompt), 0);
  EXPECT_EQ(off.serve_and_release(2, prompt), 0);
  EXPECT_EQ(off.cache->stats().free_blocks, off.cache->stats().num_blocks);
}

TEST(HybridCache, SaltsKeepPrefixesApart) {
  Fixture f("kkm");
  const auto prompt = some_tokens(64, 1);
  EXPECT_EQ(f.serve(1, prompt, 64, {.salt = "a", .owner = "x"}), 0);
  EXPECT_EQ(f.serve(2, prompt, 64, {.salt = "b", .owner = "x"}), 0);
  EXPECT_EQ(f.serve(3, prompt, 64, {.salt = "a", .owner = "y"}), 48);
}

// Prompts of N−1, N and N+1 tokens for every stride N, then one and two tokens longer (field report 23).
TEST(HybridCache, ExactBoundariesAreReused) {
  for (const int64_t stride : {16, 32, 48, 64, 96, 128, 160}) {
    for (const int64_t around : {-1, 0, 1}) {
      SCOPED_TRACE(cat("prompt of ", stride + around));
      Fixture f("kkkm");
      const auto all = some_tokens(stride + 8, static_cast<uint64_t>(stride));
      const auto first = [&](int64_t n) { return std::vector<TokenId>(all.begin(), all.begin() + n); };
      const int64_t n = stride + around;
      EXPECT_EQ(f.serve_and_release(1, first(n)), 0);
      EXPECT_EQ(f.serve_and_release(2, first(n)), (n - 1) / 16 * 16);
      EXPECT_EQ(f.serve_and_release(3, first(n + 1)), n / 16 * 16);
      EXPECT_EQ(f.serve_and_release(4, first(n + 2)), (n + 1) / 16 * 16);
    }
  }
}

// Prompts with a shared beginning and an end of their own (field report 22), here at an eighth of the lengths.
TEST(HybridCache, SharedJunctionIsFoundByTheThirdPrompt) {
  for (const auto& [shared, own] : {std::pair<int64_t, int64_t>{188, 88}, {200, 75}}) {
    Fixture f("kkkm");
    const auto stem = some_tokens(shared, 5);
    int64_t queried = 0;
    int64_t hit_tokens = 0;
    for (int32_t i = 0; i < 64; ++i) {
      const int64_t hit = f.serve_and_release(i, joined(stem, some_tokens(own, static_cast<uint64_t>(100 + i))), 64);
      queried += shared + own;
      hit_tokens += hit;
      // The first computes all, the second finds latents without a state and leaves one at the junction.
      EXPECT_EQ(hit, i < 2 ? 0 : shared / 16 * 16) << i;
      if (i != 0) continue;
      // The second one will be told why.
      const PrefixMatch match = f.cache->match(joined(stem, some_tokens(own, 101)), {});
      EXPECT_EQ(match.missed.front().reason, MissReason::kNoCheckpoint);
      EXPECT_EQ(match.missed.front().end, shared / 16 * 16);
    }
    EXPECT_EQ(f.cache->stats().query_tokens, queried);
    EXPECT_EQ(f.cache->stats().hit_tokens, hit_tokens);
    EXPECT_GT(hit_tokens, queried * 6 / 10);
  }
}

TEST(HybridCache, WantedCheckpoints) {
  const TokenId end(7);
  std::vector<TokenId> prompt(100, TokenId(1));
  for (const size_t at : {20u, 40u, 42u, 90u}) prompt[at] = end;
  const auto positions = [&](int64_t length, int64_t hit, int64_t latents, const WantedOptions& options) {
    std::vector<std::pair<int64_t, CheckpointReason>> found;
    for (const auto& wanted :
         wanted_checkpoints(std::span(prompt).first(static_cast<size_t>(length)), hit, latents, options)) {
      found.emplace_back(wanted.position, wanted.reason);
    }
    return found;
  };
  using enum CheckpointReason;
  using List = std::vector<std::pair<int64_t, CheckpointReason>>;
  EXPECT_EQ(positions(100, 0, 0, {16, 0, std::nullopt}), (List{{96, kPromptEnd}}));
  EXPECT_EQ(positions(96, 0, 0, {16, 0, std::nullopt}), (List{{80, kPromptEnd}, {96, kPromptEndInclusive}}));
  EXPECT_EQ(positions(96, 80, 80, {16, 0, std::nullopt}), (List{{96, kPromptEndInclusive}}));
  EXPECT_EQ(positions(100, 0, 0, {16, 0, end}), (List{{32, kTurn}, {80, kTurn}, {96, kPromptEnd}}));
  EXPECT_EQ(positions(100, 16, 60, {16, 32, end}),
            (List{{32, kTurn}, {48, kJunction}, {64, kInterval}, {80, kTurn}, {96, kPromptEnd}}));
  EXPECT_EQ(positions(100, 0, 32, {16, 0, end}), (List{{32, kJunction}, {80, kTurn}, {96, kPromptEnd}}));
  EXPECT_EQ(positions(15, 0, 0, {16, 0, end}), List{});
}

TEST(HybridCache, TurnsAreFoundByTheTokenThatEndsAMessage) {
  Fixture f("kkkm", {.message_end = TokenId(60)});
  auto prompt = some_tokens(200, 3);
  prompt[79] = prompt[139] = TokenId(60);
  EXPECT_EQ(f.serve_and_release(1, prompt), 0);
  // Another question behind the same first message: from that turn on.
  EXPECT_EQ(f.serve_and_release(2, joined({prompt.begin(), prompt.begin() + 85}, some_tokens(50, 4))), 80);
  EXPECT_EQ(f.serve_and_release(3, joined({prompt.begin(), prompt.begin() + 150}, some_tokens(50, 5))), 128);
}

TEST(HybridCache, DecodeLeavesOneStateThatRollsOn) {
  Fixture f("kkkm");
  const auto tokens = some_tokens(150, 9);
  const std::vector<TokenId> prompt(tokens.begin(), tokens.begin() + 20);
  ASSERT_TRUE(f.cache->admit(SeqId(1), prompt, {}, 20).has_value());
  EXPECT_TRUE(f.model.run_to_end(*f.cache, SeqId(1), prompt));
  EXPECT_TRUE(f.model.run_to_end(*f.cache, SeqId(1), tokens, 1));
  f.audit();
  EXPECT_EQ(f.cache->stats().checkpoints, 2);  // the prompt's end at 16, and the last crossing
  EXPECT_EQ(f.cache->stats().checkpoints_taken, 1 + (150 - 16) / 16);
  f.cache->release(SeqId(1));
  EXPECT_EQ(f.serve_and_release(2, joined(tokens, some_tokens(30, 1))), 144);
  EXPECT_EQ(f.cache->match(std::vector<TokenId>(tokens.begin(), tokens.begin() + 130), {}).hit_tokens, 16);
}

TEST(HybridCache, ACancelledPrefillIsReusableUpToItsLastStep) {
  Fixture f("kkkm");
  const auto prompt = some_tokens(500, 9);
  ASSERT_TRUE(f.cache->admit(SeqId(1), prompt, {}, 500).has_value());
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(f.model.step(*f.cache, SeqId(1), prompt, 80));
  EXPECT_EQ(f.cache->match(prompt, {}).hit_tokens, 320);
  f.cache->release(SeqId(1));
  f.audit();
  EXPECT_EQ(f.serve_and_release(2, prompt, 80), 320);
}

TEST(HybridCache, TwoIdenticalRequestsInOneStepBothCompute) {
  Fixture f("kkkm");
  const auto prompt = some_tokens(64, 9);
  EXPECT_EQ(f.cache->admit(SeqId(1), prompt, {}, 64)->hit_tokens, 0);
  ASSERT_TRUE(f.cache->prepare_step(SeqId(1), 64));
  f.model.run(f.cache->view(SeqId(1)), f.cache->captures(SeqId(1)), prompt, 0, 64);
  // Written, not committed: not to be matched.
  const auto match = f.cache->admit(SeqId(2), prompt, {.salt = "", .owner = ""}, 64);
  EXPECT_EQ(match->hit_tokens, 0);
  EXPECT_EQ(match->missed.front().reason, MissReason::kNotYetWritten);
  f.audit();
  EXPECT_TRUE(f.cache->commit_step(SeqId(1), prompt).is_ok());
  EXPECT_TRUE(f.model.run_to_end(*f.cache, SeqId(2), prompt));
  f.audit();
  EXPECT_EQ(f.serve(3, prompt), 48);
}

TEST(HybridCache, AFailedStepLeavesNothingToMatch) {
  Fixture f("kkkm");
  const auto prompt = some_tokens(64, 9);
  f.cache->admit(SeqId(1), prompt, {}, 64);
  EXPECT_TRUE(f.model.step(*f.cache, SeqId(1), prompt, 32));
  ASSERT_TRUE(f.cache->prepare_step(SeqId(1), 32));
  f.model.run(f.cache->view(SeqId(1)), f.cache->captures(SeqId(1)), prompt, 32, 32);
  f.cache->abort_step(SeqId(1));
  f.audit();
  EXPECT_EQ(f.cache->match(prompt, {}).hit_tokens, 32);
  f.cache->release(SeqId(1));
  f.audit();
  EXPECT_EQ(f.serve(2, prompt), 32);
}

TEST(HybridCache, CommitRefusesCachesThatAreNotWhereThePlanSaid) {
  const auto prompt = some_tokens(64, 9);
  for (const int fault : {0, 1, 2, 3, 4, 5}) {
    SCOPED_TRACE(fault);
    Fixture f("kkkm");
    f.cache->admit(SeqId(1), prompt, {}, 64);
    ASSERT_TRUE(f.cache->prepare_step(SeqId(1), 32));
    const SequenceCacheView view = f.cache->view(SeqId(1));
    f.model.run(view, f.cache->captures(SeqId(1)), prompt, 0, 32);
    ASSERT_FALSE(f.cache->captures(SeqId(1)).empty());
    std::vector<TokenId> computed(prompt.begin(), prompt.begin() + 32);
    const auto capture = f.cache->captures(SeqId(1)).front().view;
    std::string expected = "layer 1";
    if (fault == 0) std::get<KdaState>(view.layers[1]).position = 31;
    if (fault == 1) ++std::get<KdaState>(view.layers[1]).state_version;  // written twice
    if (fault == 2) std::get<KdaState>(capture.layers[1]).position = kStateInFlight;
    if (fault == 3) {
      std::get<MlaLatent>(view.layers[3]).length = 31;
      expected = "layer 3";
    }
    if (fault == 4) {
      computed[5] = TokenId(computed[5].value + 1);
      expected = "token 5";
    }
    if (fault == 5) {
      computed.pop_back();
      expected = "31 tokens";
    }
    const Status status = f.cache->commit_step(SeqId(1), computed);
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), ::testing::HasSubstr(expected));
    f.audit();
    EXPECT_EQ(f.cache->match(prompt, {}).hit_tokens, 0);
    f.cache->release(SeqId(1));
    f.audit();
    EXPECT_EQ(f.cache->stats().free_blocks, f.cache->stats().num_blocks);
  }
}

// What is left of a released sequence's prefix when `count` blocks of it were taken.
int64_t hit_after_evicting(Fixture& f, int64_t count, const std::vector<TokenId>& tokens) {
  const HybridCacheStats stats = f.cache->stats();
  const int64_t blocks = stats.free_blocks + count;
  const int64_t room = (blocks - f.cache->blocks_needed(0, 0)) * f.cache->layout().page_tokens;
  EXPECT_TRUE(f.cache->admit(SeqId(900), some_tokens(1, 1), {}, room, false).has_value());
  EXPECT_EQ(f.cache->stats().evicted_blocks, count);
  f.audit();
  f.cache->release(SeqId(900));
  return f.cache->match(tokens, {}).hit_tokens;
}

TEST(HybridCache, TheTailOfAPrefixIsEvictedBeforeItsHead) {
  for (int64_t count = 1; count < 10; ++count) {
    Fixture f("m");
    const auto tokens = some_tokens(165, 3);
    f.serve_and_release(1, tokens);  // ten whole pages
    EXPECT_EQ(hit_after_evicting(f, count, tokens), 160 - 16 * count);
  }
}

TEST(HybridCache, DominatedCheckpointsAreEvictedFirst) {
  // Checkpoints at 48 and 96: three groups each. The one at 96 makes the other one dispensable.
  Fixture f("kkkm", {.checkpoint_interval = 48});
  const auto tokens = some_tokens(100, 3);
  f.serve_and_release(1, tokens);
  ASSERT_EQ(f.cache->stats().checkpoints, 2);
  EXPECT_EQ(hit_after_evicting(f, 3, tokens), 96);
  EXPECT_EQ(f.cache->stats().checkpoints, 1);
  // Another conversation branches off behind the first one: neither is dispensable, the tail goes first.
  Fixture g("kkkm", {.checkpoint_interval = 48});
  g.serve_and_release(1, tokens);
  auto other = tokens;
  other[60] = TokenId(55);
  g.serve_and_release(2, other);
  ASSERT_EQ(g.cache->stats().checkpoints, 3);
  const int64_t taken_first = g.cache->match(tokens, {}).hit_tokens;
  EXPECT_EQ(taken_first, 96);
  hit_after_evicting(g, 4, tokens);
  EXPECT_EQ(g.cache->match({tokens.begin(), tokens.begin() + 60}, {}).hit_tokens, 48);
}

// The first byte of a checkpoint's state in layer 0, kept from the step that writes it.
std::byte* written_checkpoint(Fixture& f, int32_t id, const std::vector<TokenId>& prompt) {
  f.cache->admit(SeqId(id), prompt, {}, static_cast<int64_t>(prompt.size()));
  EXPECT_TRUE(f.cache->prepare_step(SeqId(id), static_cast<int64_t>(prompt.size())));
  f.model.run(f.cache->view(SeqId(id)), f.cache->captures(SeqId(id)), prompt, 0, static_cast<int64_t>(prompt.size()));
  auto* state = std::get<KdaState>(f.cache->captures(SeqId(id)).back().view.layers[0]).recurrent;
  EXPECT_TRUE(f.cache->commit_step(SeqId(id), prompt).is_ok());
  f.cache->release(SeqId(id));
  return static_cast<std::byte*>(state);
}

TEST(HybridCache, ACorruptCheckpointIsRefusedAndTheNextBestServes) {
  Fixture f("kkkm", {.checkpoint_interval = 32});
  const auto prompt = some_tokens(70, 9);
  std::byte* state = written_checkpoint(f, 1, prompt);
  f.audit();
  state[3] ^= std::byte{0x10};
  const Status audit = f.cache->audit(true);
  EXPECT_THAT(audit.message(), ::testing::HasSubstr("its bytes changed"));
  EXPECT_TRUE(f.cache->audit(false).is_ok());
  EXPECT_EQ(f.cache->match(prompt, {}).hit_tokens, 64);  // it looks well until it is to be used
  EXPECT_EQ(f.serve(2, prompt), 32);                     // every byte is checked by the fake model
  EXPECT_EQ(f.cache->stats().refused_checkpoints, 1);
  EXPECT_EQ(f.serve(3, prompt), 64);  // computed again since
}

TEST(HybridCache, AStateThatIsNotFiniteIsNeverShared) {
  for (const bool in_state : {true, false}) {
    for (const float value : {NAN, INFINITY}) {
      Fixture f("kkkm");
      const auto prompt = some_tokens(64, 9);
      f.cache->admit(SeqId(1), prompt, {}, 64);
      ASSERT_TRUE(f.cache->prepare_step(SeqId(1), 64));
      f.model.run(f.cache->view(SeqId(1)), f.cache->captures(SeqId(1)), prompt, 0, 64);
      if (in_state) {
        for (const PlannedCapture& capture : f.cache->captures(SeqId(1))) {
          static_cast<float*>(std::get<KdaState>(capture.view.layers[1]).recurrent)[5] = value;
        }
      } else {
        std::memcpy(std::get<MlaLatent>(f.cache->view(SeqId(1)).layers[3]).pages[2] + 4 * 32, &value, sizeof(value));
      }
      EXPECT_TRUE(f.cache->commit_step(SeqId(1), prompt).is_ok());
      f.audit();
      EXPECT_EQ(f.cache->match(prompt, {}).hit_tokens, 0);
      EXPECT_EQ(f.cache->stats().refused_non_finite, 1);
      f.cache->release(SeqId(1));
      f.audit();
    }
  }
}

// A capture that the model never wrote holds the pattern, and is not published (field report 26).
TEST(HybridCache, UnwrittenSlotsArePoisonedAndNotPublished) {
  for (const bool poison : {true, false}) {
    Fixture f("kkkm", {.poison = poison});
    const auto prompt = some_tokens(64, 9);
    for (int32_t round = 0; round < 2; ++round) {
      f.cache->admit(SeqId(1), prompt, {.salt = cat(round), .owner = ""}, 64);
      ASSERT_TRUE(f.cache->prepare_step(SeqId(1), 64));
      f.model.run(f.cache->view(SeqId(1)), {}, prompt, 0, 64);
      for (const PlannedCapture& capture : f.cache->captures(SeqId(1))) {
        for (LayerCache& layer : capture.view.layers) {
          auto* state = std::get_if<KdaState>(&layer);
          if (state == nullptr) continue;
          const float first = *static_cast<float*>(state->recurrent);
          EXPECT_EQ(std::isnan(first), poison);
          state->position = capture.num_tokens;  // a model that claims to have written it
          ++state->state_version;
        }
      }
      EXPECT_TRUE(f.cache->commit_step(SeqId(1), prompt).is_ok());
      EXPECT_EQ(f.cache->stats().refused_non_finite, poison ? round + 1 : 0);
      f.audit();
      f.cache->release(SeqId(1));
    }
    EXPECT_EQ(f.cache->match(prompt, {.salt = "0", .owner = ""}).hit_tokens, poison ? 0 : 48);
  }
}

TEST(HybridCache, CopyOnWriteLeavesTheDonorsBytes) {
  Fixture f("kkkm");
  const auto prompt = some_tokens(150, 9);
  ASSERT_EQ(f.cache->layout().page_tokens, 16);
  // A page of one unit has no partial hits: a longer one, by a larger state.
  const CacheLayout layout = fake_layout("kkkm", DType::kF32, 24);
  HybridCacheOptions options{.hash_unit = 16, .budget_bytes = int64_t{16} << 20, .identity = "x"};
  f.cache = HybridCache::create(layout, options).value();
  f.model = FakeModel(layout);
  const int64_t page = f.cache->layout().page_tokens;
  ASSERT_GE(page, 64);
  EXPECT_EQ(f.serve(1, prompt), 0);
  ASSERT_TRUE(f.cache->prepare_step(SeqId(1), 1));
  const auto pages = std::get<MlaLatent>(f.cache->view(SeqId(1)).layers[3]).pages;
  std::vector<std::byte> before;
  for (const std::byte* p : pages) before.insert(before.end(), p, p + page * layout.latent_row_bytes());
  EXPECT_EQ(f.serve(2, joined({prompt.begin(), prompt.begin() + 146}, some_tokens(100, 1))), 144);
  EXPECT_EQ(f.serve(3, joined({prompt.begin(), prompt.begin() + 146}, some_tokens(100, 2))), 144);
  std::vector<std::byte> after;
  for (const std::byte* p : pages) after.insert(after.end(), p, p + page * layout.latent_row_bytes());
  EXPECT_EQ(before, after);
  EXPECT_TRUE(f.model.run_to_end(*f.cache, SeqId(1), joined(prompt, some_tokens(30, 4)), 1));
  f.audit();
}

TEST(HybridCache, WindowsWithTwoStatesEqualTokenByToken) {
  for (const char* kinds : {"kkkm", "kk", "mm"}) {
    SCOPED_TRACE(kinds);
    std::mt19937_64 random(11);
    for (int64_t round = 0; round < 60; ++round) {
      Fixture f(kinds, {.poison = round % 2 == 0});
      const auto tokens = some_tokens(120, 100 + static_cast<uint64_t>(round));
      const std::vector<TokenId> prompt(tokens.begin(), tokens.begin() + 10);
      f.cache->admit(SeqId(1), prompt, {}, 10);
      EXPECT_TRUE(f.model.run_to_end(*f.cache, SeqId(1), prompt));
      while (f.cache->length(SeqId(1)) < 100) {
        const int64_t done = f.cache->length(SeqId(1));
        const auto window = static_cast<int64_t>(1 + random() % 8);
        const auto commit = static_cast<int64_t>(1 + random() % static_cast<uint64_t>(window));
        const int64_t accepted = random() % 2 == 0 ? commit : window;
        // What is rejected are other tokens than those that follow.
        std::vector<TokenId> drafted(tokens.begin(), tokens.begin() + done + accepted);
        while (static_cast<int64_t>(drafted.size()) < done + window) drafted.emplace_back(99);
        ASSERT_TRUE(f.cache->prepare_window(SeqId(1), window, commit));
        EXPECT_TRUE(f.model.holds(f.cache->view(SeqId(1)), tokens, done));
        f.model.run(f.cache->view(SeqId(1)), f.cache->captures(SeqId(1)), drafted, done, window);
        const auto rows = std::span(drafted).subspan(static_cast<size_t>(done));
        EXPECT_EQ(f.cache->commit_window(SeqId(1), rows, window + 1).code(), StatusCode::kInvalidArgument);
        const Status status = f.cache->commit_window(SeqId(1), rows, accepted);
        ASSERT_TRUE(status.is_ok()) << status.message();
        f.audit();
      }
      const int64_t length = f.cache->length(SeqId(1));
      // No checkpoint of rejected tokens, and one at the last crossing that was kept.
      const std::vector<TokenId> again(tokens.begin(), tokens.begin() + length + 1);
      EXPECT_EQ(f.cache->match(again, {}).hit_tokens, length / 16 * 16);
      f.cache->release(SeqId(1));
      f.audit();
      EXPECT_EQ(f.serve(2, tokens), length / 16 * 16);
    }
  }
}

TEST(HybridCache, ForksGoTheirOwnWays) {
  for (const char* kinds : {"kkkm", "kk", "mm"}) {
    SCOPED_TRACE(kinds);
    for (const int64_t length : {1, 15, 16, 17, 40, 64, 65}) {
      Fixture f(kinds);
      const auto stem = some_tokens(length, 3);
      f.cache->admit(SeqId(1), stem, {}, length);
      EXPECT_TRUE(f.model.run_to_end(*f.cache, SeqId(1), stem));
      ASSERT_TRUE(f.cache->fork(SeqId(1), SeqId(2)));
      ASSERT_TRUE(f.cache->fork(SeqId(2), SeqId(3)));
      f.audit();
      EXPECT_TRUE(f.model.run_to_end(*f.cache, SeqId(1), joined(stem, some_tokens(50, 4)), 1));
      EXPECT_TRUE(f.model.run_to_end(*f.cache, SeqId(2), joined(stem, some_tokens(50, 5)), 3));
      f.audit();
      f.cache->release(SeqId(1));
      f.audit();
      EXPECT_TRUE(f.model.run_to_end(*f.cache, SeqId(3), joined(stem, some_tokens(50, 6)), 1));
      f.audit();
      EXPECT_EQ(f.serve(4, joined(stem, some_tokens(50, 6))), (length + 49) / 16 * 16);
    }
  }
}

TEST(HybridCache, SwappedSequencesGoOnAsIfNothingHappened) {
  for (const char* kinds : {"kkkm", "kk", "mm"}) {
    for (const int64_t length : {5, 16, 50, 64, 100}) {
      for (const bool is_evicted : {false, true}) {
        SCOPED_TRACE(cat(kinds, " ", length, " evicted ", is_evicted));
        Fixture f(kinds, {.budget_bytes = 40 * 4096 * (std::string_view(kinds) == "mm" ? 2 : 1)});
        const auto tokens = some_tokens(150, 3);
        const std::vector<TokenId> prompt(tokens.begin(), tokens.begin() + 70);
        f.cache->admit(SeqId(1), prompt, {}, 1);
        while (f.cache->length(SeqId(1)) < length) EXPECT_TRUE(f.model.step(*f.cache, SeqId(1), tokens, 1));
        const int64_t bytes = f.cache->swap_bytes(SeqId(1));
        EXPECT_EQ(f.cache->swap_out(SeqId(1), bytes - 1), nullptr);
        const auto swapped = f.cache->swap_out(SeqId(1), bytes);
        ASSERT_NE(swapped, nullptr);
        EXPECT_EQ(swapped->bytes(), bytes);
        EXPECT_EQ(swapped->length(), length);
        f.audit();
        if (is_evicted) f.evict_everything();
        bool lost = true;
        ASSERT_TRUE(f.cache->swap_in(SeqId(1), *swapped, 10, lost));
        EXPECT_FALSE(lost);
        f.audit();
        EXPECT_TRUE(f.model.run_to_end(*f.cache, SeqId(1), tokens, 1));
        f.audit();
        f.cache->release(SeqId(1));
        EXPECT_EQ(f.serve(2, tokens), 144);
      }
    }
  }
}

TEST(HybridCache, ASwappedSequenceThatCountedOnOthersIsLostWithThem) {
  Fixture f("km", {.budget_bytes = 20 * 4096});
  const auto tokens = some_tokens(64, 3);
  f.serve(1, tokens);
  f.serve(2, joined(tokens, some_tokens(20, 4)));
  const auto swapped = f.cache->swap_out(SeqId(2), 1 << 20);  // whose first pages the other one uses too
  ASSERT_NE(swapped, nullptr);
  bool lost = false;
  ASSERT_TRUE(f.cache->swap_in(SeqId(2), *swapped, 0, lost));
  f.audit();
  const auto again = f.cache->swap_out(SeqId(2), 1 << 20);
  f.cache->release(SeqId(1));
  const int64_t all = (f.cache->stats().num_blocks - 1) * 16;
  ASSERT_TRUE(f.cache->admit(SeqId(3), some_tokens(all, 9), {}, all));
  EXPECT_FALSE(f.cache->swap_in(SeqId(2), *again, 0, lost));
  EXPECT_TRUE(lost);
  f.cache->release(SeqId(3));
  f.audit();
}

TEST(HybridCache, QuarantineEndsAllUseOfAChain) {
  Fixture f("kkkm", {.checkpoint_interval = 16, .checkpoints_per_chain = 100});
  const auto tokens = some_tokens(128, 3);
  f.serve(1, tokens);
  f.serve(2, joined(tokens, some_tokens(20, 4)));
  const auto swapped = f.cache->swap_out(SeqId(2), 1 << 20);
  f.cache->quarantine(tokens, {}, 50);
  f.audit();
  EXPECT_EQ(f.cache->match(tokens, {}).hit_tokens, 48);
  // Whoever computed on it goes on, and shares nothing more.
  EXPECT_TRUE(f.model.run_to_end(*f.cache, SeqId(1), joined(tokens, some_tokens(40, 5)), 1));
  bool lost = false;
  ASSERT_TRUE(f.cache->swap_in(SeqId(2), *swapped, 0, lost));
  EXPECT_TRUE(
      f.model.run_to_end(*f.cache, SeqId(2), joined(joined(tokens, some_tokens(20, 4)), some_tokens(40, 5)), 1));
  f.audit();
  ASSERT_TRUE(f.cache->fork(SeqId(1), SeqId(3)));
  f.cache->release(SeqId(1));
  f.cache->release(SeqId(2));
  f.audit();
  EXPECT_EQ(f.cache->match(tokens, {}).hit_tokens, 48);
  EXPECT_EQ(f.cache->match(tokens, {}).matched_tokens, 48);
  EXPECT_EQ(f.cache->match(joined(joined(tokens, some_tokens(20, 4)), some_tokens(40, 5)), {}).hit_tokens, 48);
  EXPECT_EQ(f.serve(4, tokens), 48);
  EXPECT_EQ(f.serve(5, tokens), 112);
  // Others have computed the chain anew; a fork of the old one still adds nothing to it.
  const auto anew = joined(tokens, some_tokens(40, 5));
  EXPECT_EQ(f.serve(6, anew), 128);
  EXPECT_TRUE(f.model.run_to_end(*f.cache, SeqId(3), joined(anew, some_tokens(60, 6)), 1));
  f.audit();
  EXPECT_EQ(f.cache->match(joined(anew, some_tokens(60, 6)), {}).hit_tokens, 160);
}

// A long window of which little is accepted: the states behind that are of tokens that never came.
TEST(HybridCache, AStateBehindTheAcceptedTokensIsDropped) {
  for (const char* kinds : {"kkkm", "kk"}) {
    Fixture f(kinds);
    const auto tokens = some_tokens(80, 3);
    const std::vector<TokenId> prompt(tokens.begin(), tokens.begin() + 10);
    f.cache->admit(SeqId(1), prompt, {}, 10);
    EXPECT_TRUE(f.model.run_to_end(*f.cache, SeqId(1), prompt));
    const auto drafted = joined({tokens.begin(), tokens.begin() + 20}, std::vector<TokenId>(20, TokenId(70)));
    ASSERT_TRUE(f.cache->prepare_window(SeqId(1), 30, 10));
    ASSERT_EQ(f.cache->captures(SeqId(1)).size(), 2u);  // the commit point at 20, and the unit's end at 32
    f.model.run(f.cache->view(SeqId(1)), f.cache->captures(SeqId(1)), drafted, 10, 30);
    EXPECT_TRUE(f.cache->commit_window(SeqId(1), std::span(drafted).subspan(10), 10).is_ok());
    f.audit();
    EXPECT_EQ(f.cache->stats().checkpoints, 0);
    EXPECT_TRUE(f.model.run_to_end(*f.cache, SeqId(1), tokens, 1));
    EXPECT_EQ(f.serve(2, drafted), 0);
    EXPECT_EQ(f.serve(3, joined(tokens, some_tokens(5, 4))), 80);
  }
}

TEST(HybridCache, AdmissionWithoutRoomChangesNothing) {
  Fixture f("kkkm", {.budget_bytes = 12 * 4096});
  const auto stem = some_tokens(64, 3);
  f.serve(1, stem);
  const HybridCacheStats before = f.cache->stats();
  EXPECT_FALSE(f.cache->admit(SeqId(2), joined(stem, some_tokens(500, 4)), {}, 500).has_value());
  EXPECT_FALSE(f.cache->admit(SeqId(2), some_tokens(500, 4), {}, 500).has_value());
  f.audit();
  const HybridCacheStats after = f.cache->stats();
  EXPECT_EQ(after.free_blocks, before.free_blocks);
  EXPECT_EQ(after.evictable_blocks, before.evictable_blocks);
  EXPECT_EQ(after.indexed_units, before.indexed_units);
  EXPECT_EQ(after.checkpoints, before.checkpoints);
  EXPECT_FALSE(f.cache->prepare_step(SeqId(1), 500));
  f.audit();
  EXPECT_EQ(f.cache->length(SeqId(1)), 64);
  EXPECT_TRUE(f.model.run_to_end(*f.cache, SeqId(1), joined(stem, some_tokens(3, 3)), 1));
}

// A pool that holds one long sequence: its own cached prefix must not keep the next one out.
TEST(HybridCache, AHitNeverStandsInTheWayOfTheOnlySequence) {
  Fixture f("kkkm", {.budget_bytes = (3 + 8) * 4096});
  const auto prompt = some_tokens(128, 3);
  for (int32_t id = 1; id < 6; ++id) {
    const auto match = f.cache->admit(SeqId(id), prompt, {}, 128);
    ASSERT_TRUE(match.has_value()) << id;
    EXPECT_TRUE(f.model.run_to_end(*f.cache, SeqId(id), prompt, 32));
    f.audit();
    f.cache->release(SeqId(id));
  }
}

TEST(HybridCache, CheckpointsGiveWayToGrowth) {
  Fixture f("kkkm", {.budget_bytes = (3 + 4 + 2) * 4096});
  const auto prompt = some_tokens(100, 3);
  ASSERT_TRUE(f.cache->admit(SeqId(1), prompt, {}, 100, true).has_value() ||
              f.cache->admit(SeqId(1), prompt, {}, 64, true).has_value());
  EXPECT_TRUE(f.model.step(*f.cache, SeqId(1), prompt, 64));
  EXPECT_EQ(f.cache->stats().checkpoints_taken, 0);
  EXPECT_GT(f.cache->stats().checkpoints_skipped, 0);
  f.audit();
}

// Field report 79: what a sequence holds is told by kind, and the padding with it.
TEST(HybridCache, ResidentBytesByKind) {
  Fixture f("kkkm");
  const auto prompt = some_tokens(40, 3);
  f.serve(1, prompt);
  const SequenceBytes bytes = f.cache->bytes(SeqId(1));
  EXPECT_EQ(bytes.kda_state, f.layout.state_bytes());
  EXPECT_EQ(bytes.mla_latent, 40 * f.layout.latent_bytes_per_token());
  EXPECT_EQ(bytes.kda_state + bytes.mla_latent + bytes.padding, (3 + 3) * f.cache->stats().block_bytes);
  EXPECT_EQ(f.cache->stats().mla_blocks_in_use, 3);
  EXPECT_EQ(f.cache->stats().kda_blocks_in_use, 3);
}

TEST(HybridCache, OptionsThatCannotBeAreNamed) {
  const auto refused = [](HybridCacheOptions options, std::string_view what, StatusCode code) {
    options.identity = "x";
    const auto made = HybridCache::create(fake_layout("km"), options);
    ASSERT_FALSE(made.is_ok());
    EXPECT_EQ(made.status().code(), code);
    EXPECT_THAT(made.status().message(), ::testing::HasSubstr(what));
  };
  refused({.hash_unit = 100, .budget_bytes = 1 << 20}, "hash unit", StatusCode::kInvalidArgument);
  refused({.budget_bytes = 1 << 20, .num_kda_groups = 9}, "KDA groups", StatusCode::kInvalidArgument);
  refused({.budget_bytes = 1 << 20, .checkpoint_interval = 100}, "interval", StatusCode::kInvalidArgument);
  refused({.budget_bytes = 1 << 20, .checkpoints_per_chain = 0}, "conversation", StatusCode::kInvalidArgument);
  refused({.budget_bytes = 4096}, "one sequence needs", StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace tandem
