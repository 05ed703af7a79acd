#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "base/cat.h"
#include "stream/expert_policy.h"
#include "stream/quick_math.h"
#include "stream/reuse_model.h"
#include "stream/trace_replay.h"
#include "support/effort.h"

namespace tandem {
namespace {

constexpr auto nobody = [](ExpertKey) { return false; };

std::vector<int32_t> some_of(std::mt19937& random, int32_t num_experts, size_t count) {
  std::set<int32_t> chosen;
  while (chosen.size() < count) chosen.insert(static_cast<int32_t>(random() % static_cast<uint32_t>(num_experts)));
  return {chosen.begin(), chosen.end()};
}

// Popularity falls as 1 / (rank + 1); a step in `drift` swaps two ranks (0: never). Uniform: all alike.
RecordedTrace synthetic(int64_t num_tokens, bool is_uniform, int drift, uint32_t seed) {
  constexpr int32_t kLayers = 8, kExperts = 64;
  std::mt19937 random(seed);
  std::vector<double> weights(kExperts);
  for (size_t i = 0; i < kExperts; ++i) weights[i] = is_uniform ? 1.0 : 1.0 / (static_cast<double>(i) + 1);
  std::discrete_distribution<int32_t> rank(weights.begin(), weights.end());
  std::vector<std::vector<int32_t>> order(kLayers, std::vector<int32_t>(kExperts));
  for (auto& ranks : order) {
    std::iota(ranks.begin(), ranks.end(), 0);
    std::shuffle(ranks.begin(), ranks.end(), random);
  }
  RecordedTrace trace;
  trace.num_layers = kLayers;
  trace.num_experts = kExperts;
  for (int64_t token = 0; token < num_tokens; ++token) {
    auto& layers = trace.tokens.emplace_back();
    for (auto& ranks : order) {
      if (drift > 0 && static_cast<int>(random() % static_cast<uint32_t>(drift)) == 0) {
        std::swap(ranks[random() % kExperts], ranks[random() % 8]);
      }
      std::set<int32_t> chosen;
      while (chosen.size() < 4) chosen.insert(ranks[static_cast<size_t>(rank(random))]);
      layers.emplace_back(chosen.begin(), chosen.end());
      trace.num_needs += 4;
    }
  }
  return trace;
}

TEST(QuickMath, StaysWithinItsStatedError) {
  for (double x = 1e-6; x < 1e6; x *= 1.013) {
    EXPECT_NEAR(quick_log2(static_cast<float>(x)), std::log2(x), 0.009) << x;
  }
  for (double x = -90; x < 90; x += 0.0371) {
    EXPECT_NEAR(quick_exp2(static_cast<float>(x)) / std::exp2(x), 1.0, 0.004) << x;
  }
  EXPECT_EQ(quick_exp2(0.F), 1.F);
  EXPECT_EQ(quick_log2(8.F), 3.F);
  EXPECT_NEAR(quick_logistic(-400.F), 0.F, 1e-30F);
  EXPECT_EQ(quick_logistic(400.F), 1.F);
}

TEST(ReuseModel, AnExpertThatIsNeededOftenIsExpectedSooner) {
  ReuseModel model(2, 32);
  std::mt19937 random(3);
  for (int token = 0; token < 200; ++token) {
    for (const int64_t layer : {0, 1}) {
      std::vector<int32_t> needed = some_of(random, 24, 3);
      if (token % 2 == 0) needed.push_back(30);
      if (token % 50 == 0) needed.push_back(31);
      model.observe(layer, needed);
    }
  }
  const std::span<const float> estimates = model.estimates(1);
  EXPECT_GT(estimates[30], estimates[31]);
  EXPECT_GT(estimates[31], estimates[28]);  // never needed
  for (const float estimate : estimates) EXPECT_TRUE(std::isfinite(estimate));
}

TEST(ReuseModel, ALongSequenceThatRepeatsIsRecalled) {
  // A cycle of 40 tokens, each with experts of its own: rates are all alike, only the order tells what comes.
  ReuseModel model(4, 160);
  const auto needed_at = [](int token, int64_t layer) {
    const int32_t first = static_cast<int32_t>((token % 40) * 4);
    return std::vector<int32_t>{first + static_cast<int32_t>(layer) % 2, first + 2};
  };
  constexpr int kTokens = 160;
  for (int token = 0; token < kTokens; ++token) {
    for (int64_t layer = 0; layer < 4; ++layer) model.observe(layer, needed_at(token, layer));
  }
  const std::span<const float> estimates = model.estimates(3);
  const std::vector<int32_t> coming = needed_at(kTokens, 3);
  for (const int32_t expert : coming) {
    const auto above = std::count_if(estimates.begin(), estimates.end(),
                                     [&](float other) { return other > estimates[static_cast<size_t>(expert)]; });
    EXPECT_LE(above, 4) << expert;  // of 160: behind those just needed at most
  }
}

TEST(ReusePolicy, APrefillDoesNotFlushWhatDecodingUses) {
  constexpr int32_t kLayers = 4, kExperts = 64;
  constexpr size_t kPlaces = 4 * 16;
  const auto policy = make_reuse_policy(kLayers, kExperts);
  std::set<std::pair<int32_t, int32_t>> held;
  std::mt19937 random(5);
  const auto step = [&](int32_t layer, const std::vector<int32_t>& needed) {
    policy->on_step(layer, needed);
    const auto is_pinned = [&](ExpertKey key) {
      return key.layer == layer && std::binary_search(needed.begin(), needed.end(), key.expert);
    };
    for (const int32_t expert : needed) {
      if (held.contains({layer, expert})) continue;
      if (held.size() == kPlaces) {
        const auto victim = policy->victim({layer, expert}, false, is_pinned);
        if (!victim.has_value()) continue;
        held.erase({victim->layer, victim->expert});
        policy->on_remove(*victim);
      }
      held.emplace(layer, expert);
      policy->on_insert({layer, expert});
    }
  };
  for (int token = 0; token < 100; ++token) {  // eight favourites a layer
    for (int32_t layer = 0; layer < kLayers; ++layer) step(layer, some_of(random, 8, 4));
  }
  const auto favourites = [&] {
    return std::count_if(held.begin(), held.end(), [](const auto& key) { return key.second < 8; });
  };
  ASSERT_EQ(favourites(), 8 * kLayers);
  std::vector<int32_t> all(kExperts - 4);
  std::iota(all.begin(), all.end(), 4);
  for (int chunk = 0; chunk < 3; ++chunk) {
    for (int32_t layer = 0; layer < kLayers; ++layer) step(layer, all);
  }
  // A layer's own chunk may need every place at once; those of the others go by their worth and favourites return.
  for (int token = 0; token < 4; ++token) {
    for (int32_t layer = 0; layer < kLayers; ++layer) step(layer, some_of(random, 8, 4));
  }
  EXPECT_GE(favourites(), 8 * kLayers - 6);
}

TEST(ReuseModel, AScanLeavesTheOrderOfTheOthersAsItWas) {
  constexpr int32_t kExperts = 64;
  ReuseModel model(1, kExperts);
  std::mt19937 random(7);
  for (int token = 0; token < 100; ++token) model.observe(0, some_of(random, 8 + token % 24, 4));
  const std::vector<float> before(model.estimates(0).begin(), model.estimates(0).end());
  std::vector<int32_t> all(kExperts);
  std::iota(all.begin(), all.end(), 0);
  for (int chunk = 0; chunk < 5; ++chunk) model.observe(0, all);
  const std::span<const float> after = model.estimates(0);
  // A visit that needs everything tells nothing apart: rates, ages and visits are those of before.
  int swapped = 0;
  for (size_t i = 0; i < kExperts; ++i) {
    for (size_t j = 0; j < i; ++j) swapped += (before[i] < before[j] && after[i] > after[j]) ? 1 : 0;
  }
  EXPECT_LE(swapped, kExperts * (kExperts - 1) / 2 / 10);
}

TEST(ReusePolicy, AGuessTakesNoPlaceFromAnExpertThatIsWorthMore) {
  const auto policy = make_reuse_policy(2, 8);
  policy->on_insert({0, 1});
  policy->on_insert({0, 2});
  for (int token = 0; token < 60; ++token) {
    policy->on_step(0, std::vector<int32_t>{1, 2});
    policy->on_step(1, std::vector<int32_t>{3});
  }
  EXPECT_FALSE(policy->victim({1, 3}, true, nobody).has_value());  // both are needed at every token
  EXPECT_TRUE(policy->victim({1, 3}, false, nobody).has_value());
  policy->on_insert({1, 7});  // never needed
  EXPECT_EQ(policy->victim({1, 3}, true, nobody), (ExpertKey{1, 7}));
  EXPECT_FALSE(policy->victim({1, 3}, false, [](ExpertKey) { return true; }).has_value());
}

TEST(ReusePolicy, HoldsItsOwnOnMadeUpTraces) {
  for (const int drift : {0, 20}) {
    SCOPED_TRACE(cat("drift ", drift));
    const RecordedTrace zipf = synthetic(600, false, drift, 11);
    const Result<ReplayReport> report = replay_trace(zipf, {10, 25, 50});
    ASSERT_TRUE(report.is_ok());
    for (const ReplayRow& row : report.value().rows) {
      EXPECT_GT(row.reuse, row.lru) << row.percent;
      EXPECT_GT(row.reuse, row.lfru) << row.percent;
    }
  }
  // Nothing can be foretold of a uniform draw: a cache of a share hits that share, by any policy that sees no future.
  const RecordedTrace uniform = synthetic(600, true, 0, 12);
  const Result<ReplayReport> report = replay_trace(uniform, {25});
  ASSERT_TRUE(report.is_ok());
  const ReplayRow& row = report.value().rows[0];
  const double deviation = std::sqrt(0.25 * 0.75 * static_cast<double>(uniform.num_needs));
  EXPECT_NEAR(static_cast<double>(row.reuse), 0.25 * static_cast<double>(uniform.num_needs), 6 * deviation);
}

TEST(ReusePolicy, TheSameStepsGiveTheSameVictims) {
  const RecordedTrace trace = synthetic(100, false, 20, 13);
  const int64_t first = replay_hits(trace, *make_reuse_policy(8, 64), 100);
  EXPECT_EQ(replay_hits(trace, *make_reuse_policy(8, 64), 100), first);
}

// The victim by the plainest search over the same model, against the policy's bookkeeping.
TEST(ReusePolicy, VictimsAreThoseOfAPlainSearchInAMillionAccesses) {
  constexpr int32_t kLayers = 5, kExperts = 24;
  constexpr int64_t kPlaces = 40;
  const auto policy = make_reuse_policy(kLayers, kExperts);
  ReuseModel model(kLayers, kExperts);
  std::mt19937 random(17);
  std::set<std::pair<int32_t, int32_t>> held;
  const int64_t accesses = test::effort(1'000'000);
  int32_t layer = 0;
  for (int64_t done = 0; done < accesses;) {
    const std::vector<int32_t> needed = some_of(random, kExperts, 1 + random() % 6);
    done += static_cast<int64_t>(needed.size());
    policy->on_step(layer, needed);
    model.observe(layer, needed);
    for (const int32_t expert : needed) {
      if (held.contains({layer, expert})) continue;
      const auto salt = random() % 7;
      const auto is_pinned = [&](ExpertKey key) {
        return (key.layer == layer && std::binary_search(needed.begin(), needed.end(), key.expert)) ||
               (salt == 0 && (key.layer + key.expert) % 3 == 0);
      };
      if (static_cast<int64_t>(held.size()) == kPlaces) {
        std::optional<ExpertKey> expected;
        float least = 0.F, least_estimate = 0.F;
        for (const auto& [of_layer, other] : held) {
          if (is_pinned({of_layer, other})) continue;
          const int32_t ahead = (of_layer - layer - 1 + 2 * kLayers) % kLayers + 1;
          const float worth = model.estimates(of_layer)[static_cast<size_t>(other)] +
                              ReuseModel::kLogDiscount * static_cast<float>(ahead) / static_cast<float>(kLayers);
          // Within a layer estimates decide: adding the wait may round two of them together.
          const float estimate = model.estimates(of_layer)[static_cast<size_t>(other)];
          const bool is_same_layer = expected.has_value() && expected->layer == of_layer;
          if (expected.has_value() && (is_same_layer ? estimate >= least_estimate : worth >= least)) continue;
          expected = ExpertKey{of_layer, other};
          least_estimate = estimate;
          least = worth;
        }
        ASSERT_EQ(policy->victim({layer, expert}, false, is_pinned), expected) << done;
        if (!expected.has_value()) continue;
        held.erase({expected->layer, expected->expert});
        policy->on_remove(*expected);
      }
      held.emplace(layer, expert);
      policy->on_insert({layer, expert});
    }
    if (random() % 50 == 0 && !held.empty()) {  // the store gives places back
      const auto gone = *held.begin();
      held.erase(held.begin());
      policy->on_remove({gone.first, gone.second});
    }
    layer = (layer + 1) % kLayers;
  }
}

}  // namespace
}  // namespace tandem
