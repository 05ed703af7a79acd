// The hybrid cache by itself, under a fake model whose every byte is known (fake_model.h).
#include "cache/hybrid_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

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

}  // namespace
}  // namespace tandem
