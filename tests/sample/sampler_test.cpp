#include "sample/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "sample/categorical.h"
#include "sample/philox.h"
#include "sample/sampler_oracle.h"
#include "support/effort.h"

namespace tandem {
namespace {

using test::oracle_probabilities;
using ::testing::HasSubstr;

std::vector<TokenId> ids(std::initializer_list<int32_t> values) {
  std::vector<TokenId> out;
  for (const int32_t value : values) out.push_back(TokenId(value));
  return out;
}

std::vector<float> random_logits(size_t vocab, uint32_t seed, float spread) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.f, spread);
  std::vector<float> logits(vocab);
  for (float& logit : logits) logit = normal(generator);
  return logits;
}

Sampler make_sampler(const SamplingParams& params, int64_t vocab, uint64_t seed = 1) {
  auto sampler = Sampler::create(params, vocab, seed);
  EXPECT_TRUE(sampler.is_ok()) << sampler.status().message();
  return std::move(sampler).value();
}

// The kept set and its probabilities through the same functions sample() uses, without the draw.
std::vector<double> sampler_probabilities(const SamplingParams& params, std::span<const float> logits,
                                          std::span<const TokenId> prompt, std::span<const TokenId> generated) {
  Sampler sampler = make_sampler(params, static_cast<int64_t>(logits.size()));
  EXPECT_TRUE(sampler.note_prompt(prompt).is_ok());
  for (const TokenId token : generated) sampler.accept(token);
  SamplerScratch scratch;
  const auto token = sampler.sample(logits, scratch);
  EXPECT_TRUE(token.is_ok()) << token.status().message();
  std::vector<double> p(logits.size(), 0.0);
  if (params.is_greedy()) {
    p[static_cast<size_t>(token.value().value)] = 1.0;
    return p;
  }
  double total = 0.0;
  for (const float weight : scratch.weights) total += static_cast<double>(weight);
  for (size_t i = 0; i < p.size(); ++i) p[i] = static_cast<double>(scratch.weights[i]) / total;
  EXPECT_GT(p[static_cast<size_t>(token.value().value)], 0.0) << "a dropped token was drawn";
  return p;
}

// Weights are f32 of an f32 distance: the distance d carries 3 roundings, so a weight is off by about (3d + 2) · 2^-24.
void expect_same_distribution(const std::vector<double>& actual, const std::vector<double>& expected) {
  constexpr double kTolerance = (3 * 25 + 2) * 0x1p-24;  // no tested probability above 1e-9 lies deeper than 25 nats
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(actual[i] > 1e-9, expected[i] > 1e-9) << "token " << i << ": " << actual[i] << " vs " << expected[i];
    ASSERT_NEAR(actual[i], expected[i], kTolerance * expected[i] + 1e-12) << "token " << i;
  }
}

// Upper critical value of chi-square, by Wilson and Hilferty; z = 4 is a chance of 3e-5 a test, fixed seeds besides.
double chi_square_limit(double freedom) {
  const double h = 2.0 / (9.0 * freedom);
  return freedom * std::pow(1.0 - h + 4.0 * std::sqrt(h), 3.0);
}

void expect_draws_follow(const SamplingParams& params, std::span<const float> logits, int draws) {
  const std::vector<double> p = oracle_probabilities(params, logits, {}, {});
  Sampler sampler = make_sampler(params, static_cast<int64_t>(logits.size()), 20240607);
  SamplerScratch scratch;
  std::vector<double> counts(logits.size(), 0.0);
  for (int i = 0; i < draws; ++i) {
    const auto token = sampler.sample(logits, scratch);
    ASSERT_TRUE(token.is_ok());
    counts[static_cast<size_t>(token.value().value)] += 1.0;
    sampler.accept(token.value());
  }
  double statistic = 0.0, freedom = -1.0, rare = 0.0, rare_expected = 0.0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double expected = p[i] * draws;
    if (p[i] == 0.0) {
      ASSERT_EQ(counts[i], 0.0) << "token " << i << " is outside the kept set";
    } else if (expected < 10.0) {  // too few for the approximation: one bin of all such tokens
      rare += counts[i];
      rare_expected += expected;
    } else {
      statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
      freedom += 1.0;
    }
  }
  if (rare_expected >= 10.0) {
    statistic += (rare - rare_expected) * (rare - rare_expected) / rare_expected;
    freedom += 1.0;
  }
  ASSERT_GE(freedom, 1.0);
  EXPECT_LT(statistic, chi_square_limit(freedom)) << freedom << " degrees of freedom";
}

TEST(Sampler, DrawsFollowTheSoftmax) {
  expect_draws_follow(SamplingParams{}, random_logits(40, 1, 1.f), static_cast<int>(test::effort(100000)));
  expect_draws_follow(SamplingParams{}, random_logits(1700, 2, 1.f),
                      static_cast<int>(test::effort(60000)));  // several blocks of the draw
}

TEST(Sampler, DrawsFollowEachFilter) {
  const auto logits = random_logits(700, 3, 2.f);
  SamplingParams hot, cold, top_k, top_p, min_p, all;
  hot.temperature = 1.7;
  cold.temperature = 0.4;
  top_k.top_k = 17;
  top_p.top_p = 0.7;
  min_p.min_p = 0.05;
  all.temperature = 0.8, all.top_k = 50, all.top_p = 0.9, all.min_p = 0.02;
  for (const SamplingParams& params : {hot, cold, top_k, top_p, min_p, all}) {
    expect_draws_follow(params, logits, static_cast<int>(test::effort(25000)));
  }
}

TEST(Sampler, KeptSetAndProbabilitiesMatchTheOracle) {
  std::mt19937 generator(11);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  for (int trial = 0; trial < 300; ++trial) {
    const size_t vocab = 1 + generator() % 2000;
    const auto logits =
        random_logits(vocab, static_cast<uint32_t>(generator()), 0.2f + static_cast<float>(uniform(generator)) * 4.f);
    SamplingParams params;
    params.temperature = trial % 7 == 0 ? 0.0 : 0.3 + uniform(generator);
    if (generator() % 2) params.top_k = static_cast<int32_t>(generator() % (vocab + 3));
    if (generator() % 2) params.top_p = uniform(generator);
    if (generator() % 2) params.min_p = 0.3 * uniform(generator);
    if (generator() % 2) params.repetition_penalty = 0.7 + uniform(generator);
    if (generator() % 2) params.presence_penalty = -2.0 + 4.0 * uniform(generator);
    if (generator() % 2) params.frequency_penalty = -1.0 + 2.0 * uniform(generator);
    for (size_t token = generator() % 5; token < vocab; token += 1 + generator() % 300) {
      const bool forbid = generator() % 4 == 0 && vocab > 1 && token != 0;
      const float bias = forbid ? -INFINITY : static_cast<float>(4.0 * uniform(generator) - 2.0);
      params.logit_bias.push_back({TokenId(static_cast<int32_t>(token)), bias});
    }
    std::vector<TokenId> prompt, generated;
    for (int i = 0; i < 20; ++i) prompt.push_back(TokenId(static_cast<int32_t>(generator() % vocab)));
    for (int i = 0; i < 15; ++i) generated.push_back(TokenId(static_cast<int32_t>(generator() % vocab)));
    SCOPED_TRACE(trial);
    ASSERT_NO_FATAL_FAILURE(expect_same_distribution(sampler_probabilities(params, logits, prompt, generated),
                                                     oracle_probabilities(params, logits, prompt, generated)));
  }
}

TEST(Sampler, ReleasedVocabularySizeMatchesTheOracle) {
  const auto logits = random_logits(163840, 5, 3.f);
  SamplingParams params;
  params.top_p = 0.95;
  expect_same_distribution(sampler_probabilities(params, logits, {}, {}), oracle_probabilities(params, logits, {}, {}));
  params.top_k = 1000;
  expect_same_distribution(sampler_probabilities(params, logits, {}, {}), oracle_probabilities(params, logits, {}, {}));
}

// What each processor does, in numbers small enough to check by hand.
TEST(Sampler, RepetitionPenaltyCoversPromptAndGeneratedAndFollowsTheSign) {
  SamplingParams params;
  params.temperature = 0.0;
  params.repetition_penalty = 2.0;
  Sampler sampler = make_sampler(params, 3);
  SamplerScratch scratch;
  EXPECT_EQ(sampler.sample(std::vector<float>{3.f, 2.f, 0.f}, scratch).value(), TokenId(0));
  ASSERT_TRUE(sampler.note_prompt(ids({0})).is_ok());
  EXPECT_EQ(sampler.sample(std::vector<float>{3.f, 2.f, 0.f}, scratch).value(), TokenId(1));  // 1.5, 2, 0
  sampler.accept(TokenId(1));
  EXPECT_EQ(sampler.sample(std::vector<float>{3.f, 2.f, 0.f}, scratch).value(), TokenId(0));       // 1.5, 1, 0
  EXPECT_EQ(sampler.sample(std::vector<float>{-1.f, -1.5f, -1.9f}, scratch).value(), TokenId(2));  // −2, −3, −1.9
}

TEST(Sampler, PresenceAndFrequencyCountGeneratedTokensOnly) {
  SamplingParams presence, frequency;
  presence.temperature = frequency.temperature = 0.0;
  presence.presence_penalty = 1.0;
  frequency.frequency_penalty = 1.0;
  Sampler once = make_sampler(presence, 2), each = make_sampler(frequency, 2);
  SamplerScratch scratch;
  const std::vector<float> logits{2.5f, 1.f};
  for (Sampler* sampler : {&once, &each}) {
    ASSERT_TRUE(sampler->note_prompt(ids({0, 0, 0})).is_ok());
    EXPECT_EQ(sampler->sample(logits, scratch).value(), TokenId(0));
    sampler->accept(TokenId(0));
    EXPECT_EQ(sampler->sample(logits, scratch).value(), TokenId(0));  // 1.5 against 1 in both
    sampler->accept(TokenId(0));
  }
  EXPECT_EQ(once.sample(logits, scratch).value(), TokenId(0));  // presence: still 1.5
  EXPECT_EQ(each.sample(logits, scratch).value(), TokenId(1));  // frequency: 0.5
}

TEST(Sampler, BiasIsAddedBeforeThePenalty) {
  SamplingParams params;
  params.temperature = 0.0;
  params.repetition_penalty = 4.0;
  params.logit_bias = {{TokenId(0), 4.f}};
  Sampler sampler = make_sampler(params, 2);
  ASSERT_TRUE(sampler.note_prompt(ids({0})).is_ok());
  SamplerScratch scratch;
  // (−1 + 4) / 4 = 0.75 loses to 0.8; the penalty first would give −4 + 4 = 0, and no penalty 3.
  EXPECT_EQ(sampler.sample(std::vector<float>{-1.f, 0.8f}, scratch).value(), TokenId(1));
  EXPECT_EQ(sampler.sample(std::vector<float>{-1.f, 0.7f}, scratch).value(), TokenId(0));
}

TEST(Sampler, GreedyTakesTheLowestIdOfATie) {
  SamplingParams params;
  params.temperature = 0.0;
  const Sampler sampler = make_sampler(params, 5);
  SamplerScratch scratch;
  EXPECT_EQ(sampler.sample(std::vector<float>{0.f, 3.f, 3.f, -1.f, 3.f}, scratch).value(), TokenId(1));
  EXPECT_EQ(sampler.sample(std::vector<float>{-0.f, 0.f, -1.f, -0.f, 0.f}, scratch).value(), TokenId(0));
}

std::vector<size_t> kept_set(const SamplingParams& params, std::span<const float> logits) {
  std::vector<size_t> kept;
  const auto p = sampler_probabilities(params, logits, {}, {});
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] > 0.0) kept.push_back(i);
  }
  return kept;
}

TEST(Sampler, EdgesOfTheFilters) {
  using Set = std::vector<size_t>;
  const std::vector<float> logits{1.f, 3.f, 2.f, 3.f, 0.f};
  SamplingParams params;
  for (const int32_t off : {-1, 0, 5, 6, std::numeric_limits<int32_t>::max()}) {
    params.top_k = off;
    EXPECT_EQ(kept_set(params, logits), (Set{0, 1, 2, 3, 4})) << "top_k " << off;
  }
  params.top_k = 1;
  EXPECT_EQ(kept_set(params, logits), (Set{1}));  // a tie at the edge keeps the lower id
  params.top_k = 3;
  EXPECT_EQ(kept_set(params, logits), (Set{1, 2, 3}));
  params.top_k = 0;
  params.top_p = 0.0;
  EXPECT_EQ(kept_set(params, logits), (Set{1}));
  params.top_p = 1.0;
  params.min_p = 1.0;
  EXPECT_EQ(kept_set(params, logits), (Set{1, 3}));  // as probable as the best: both of the tie
  params.min_p = 0.0;
  params.top_p = 0.5;  // weights 1, 1, e^-1, e^-2, e^-3: 1 of 2.55 is too little, 2 is enough
  EXPECT_EQ(kept_set(params, logits), (Set{1, 3}));
}

TEST(Sampler, TopPOfAFlatDistributionKeepsTheLowestIds) {
  const std::vector<float> logits(163840, 1.25f);
  SamplingParams params;
  params.top_p = 0.5;
  const auto kept = kept_set(params, logits);
  ASSERT_EQ(kept.size(), 81920u);
  EXPECT_EQ(kept.back(), 81919u);
}

TEST(Sampler, OneTokenVocabulary) {
  SamplingParams params;
  params.top_p = 0.5, params.top_k = 1, params.min_p = 0.5;
  const Sampler sampler = make_sampler(params, 1);
  SamplerScratch scratch;
  EXPECT_EQ(sampler.sample(std::vector<float>{-1e30f}, scratch).value(), TokenId(0));
}

TEST(Sampler, ExtremeLogitsPenaltiesAndBiasesStayFinite) {
  constexpr float kMax = std::numeric_limits<float>::max();
  const std::vector<float> logits{kMax, -kMax, 0.f};
  SamplingParams params;
  params.repetition_penalty = 1e-300;
  params.frequency_penalty = -2.0;
  params.logit_bias = {{TokenId(0), kMax}, {TokenId(1), -kMax}};
  for (const double temperature : {0.0, 1.1e-5, 1.0, 2.0}) {
    params.temperature = temperature;
    Sampler sampler = make_sampler(params, 3);
    ASSERT_TRUE(sampler.note_prompt(ids({0, 1, 2})).is_ok());
    SamplerScratch scratch;
    for (int i = 0; i < 4; ++i) {
      const auto token = sampler.sample(logits, scratch);
      ASSERT_TRUE(token.is_ok()) << token.status().message();
      EXPECT_EQ(token.value(), TokenId(0));
      sampler.accept(token.value());
    }
  }
  params.repetition_penalty = 1e300;  // the best positive logit falls to nothing, the negative one to the floor
  params.logit_bias.clear();
  params.temperature = 0.0;
  Sampler sampler = make_sampler(params, 3);
  ASSERT_TRUE(sampler.note_prompt(ids({0, 1})).is_ok());
  SamplerScratch scratch;
  EXPECT_EQ(sampler.sample(logits, scratch).value(), TokenId(0));  // 3e38 / 1e300 is still above 0
}

TEST(Sampler, ForbiddenTokensAreNeverDrawn) {
  SamplingParams params;
  params.temperature = 2.0;
  params.logit_bias = {{TokenId(1), -INFINITY}, {TokenId(2), -INFINITY}};
  Sampler sampler = make_sampler(params, 4);
  SamplerScratch scratch;
  const std::vector<float> logits{0.f, 50.f, 50.f, 0.f};
  for (int i = 0; i < 1000; ++i) {
    const TokenId token = sampler.sample(logits, scratch).value();
    ASSERT_TRUE(token == TokenId(0) || token == TokenId(3));
    sampler.accept(token);
  }
}

TEST(Sampler, NothingLeftToDrawIsAnError) {
  SamplingParams params;
  params.logit_bias = {{TokenId(0), -INFINITY}, {TokenId(1), -INFINITY}};
  for (const double temperature : {0.0, 1.0}) {
    params.temperature = temperature;
    SamplerScratch scratch;
    const auto token = make_sampler(params, 2).sample(std::vector<float>{1.f, 2.f}, scratch);
    ASSERT_FALSE(token.is_ok());
    EXPECT_EQ(token.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(token.status().message(), HasSubstr("logit_bias"));
  }
}

TEST(Sampler, NonFiniteLogitsAreAnErrorOfTheSequence) {
  SamplerScratch scratch;
  for (const double temperature : {0.0, 1.0}) {
    SamplingParams params;
    params.temperature = temperature;
    Sampler sampler = make_sampler(params, 1000);
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      for (const size_t where : {size_t{0}, size_t{517}, size_t{999}}) {
        auto logits = random_logits(1000, 4, 1.f);
        logits[where] = bad;
        const auto token = sampler.sample(logits, scratch);
        ASSERT_FALSE(token.is_ok());
        EXPECT_EQ(token.status().code(), StatusCode::kNonFinite);
        EXPECT_THAT(token.status().message(), HasSubstr("logits[" + std::to_string(where) + "]"));
        EXPECT_THAT(token.status().message(), HasSubstr(std::isnan(bad) ? "nan" : "inf"));
      }
    }
    EXPECT_TRUE(sampler.sample(random_logits(1000, 4, 1.f), scratch).is_ok()) << "the next sequence is not harmed";
  }
}

TEST(Sampler, WrongLengthAndForeignPromptTokensAreRefused) {
  Sampler sampler = make_sampler(SamplingParams{}, 10);
  SamplerScratch scratch;
  const auto token = sampler.sample(std::vector<float>(9, 0.f), scratch);
  ASSERT_FALSE(token.is_ok());
  EXPECT_THAT(token.status().message(), HasSubstr("expected 10 of them, found 9"));
  EXPECT_THAT(sampler.note_prompt(ids({3, 10})).message(),
              HasSubstr("prompt token 1: expected an id in [0, 10), found 10"));
  EXPECT_FALSE(sampler.note_prompt(ids({-1})).is_ok());
}

TEST(Sampler, SameSeedSameTokensWhateverElseRuns) {
  SamplingParams params;
  params.seed = 42;
  params.top_p = 0.95;
  const auto logits = random_logits(5000, 9, 2.f);
  Sampler a = make_sampler(params, 5000, 1), b = make_sampler(params, 5000, 2),
          other = make_sampler(SamplingParams{}, 5000, 3);
  SamplerScratch shared, own;
  std::vector<int32_t> tokens;
  for (int i = 0; i < 50; ++i) {
    const TokenId token = a.sample(logits, shared).value();
    EXPECT_EQ(a.sample(logits, shared).value(), token) << "sampling again without accept() repeats the draw";
    a.accept(token);
    tokens.push_back(token.value);
    other.accept(other.sample(logits, shared).value());
  }
  std::vector<int32_t> again;
  for (int i = 0; i < 50; ++i) {
    again.push_back(b.sample(logits, own).value().value);
    b.accept(TokenId(again.back()));
  }
  EXPECT_EQ(tokens, again);
  params.seed = 43;
  Sampler c = make_sampler(params, 5000);
  std::vector<int32_t> different;
  for (int i = 0; i < 50; ++i) {
    different.push_back(c.sample(logits, own).value().value);
    c.accept(TokenId(different.back()));
  }
  EXPECT_NE(tokens, different);
}

TEST(Sampler, RandomSeedsDiffer) { EXPECT_NE(random_seed(), random_seed()); }

TEST(Sampler, WarmCallsKeepTheirBuffers) {
  SamplingParams params;
  params.top_p = 0.9;
  params.frequency_penalty = 0.5;
  Sampler sampler = make_sampler(params, 4096);
  SamplerScratch scratch;
  sampler.accept(sampler.sample(random_logits(4096, 1, 5.f), scratch).value());
  const auto buffers = [&] {
    return std::vector<const void*>{scratch.logits.data(), scratch.weights.data(), scratch.keys.data(),
                                    scratch.block_sums.data()};
  };
  const auto before = buffers();
  for (uint32_t i = 0; i < 200; ++i) {
    sampler.accept(sampler.sample(random_logits(4096, i, i % 2 ? 0.f : 5.f), scratch).value());
  }
  EXPECT_EQ(buffers(), before);
}

// Published test vectors of Philox4x32-10 (Random123, kat_vectors).
TEST(Philox, KnownAnswers) {
  using Block = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Categorical, DecayWeightIsExpWithinItsBound) {
  EXPECT_EQ(decay_weight(0.f), 1.f);
  EXPECT_EQ(decay_weight(kMaxDistance), 0.f);
  EXPECT_EQ(decay_weight(INFINITY), 0.f);
  double worst = 0.0;
  for (float d = 0.f; d < kMaxDistance; d += 0.00173f) {
    const double exact = std::exp(-static_cast<double>(d));
    worst = std::max(worst, std::fabs(static_cast<double>(decay_weight(d)) - exact) / exact);
  }
  EXPECT_LT(worst, 2e-7);
}

// Any draw lands on a token of positive weight, also at the ends of [0, 1) and over zero blocks.
TEST(Categorical, DrawSkipsZeroWeights) {
  SamplerScratch scratch;
  scratch.weights.assign(2000, 0.f);
  scratch.weights[700] = 0.25f;
  scratch.weights[1300] = 0.75f;
  EXPECT_EQ(draw(scratch, 0.0), 700);
  EXPECT_EQ(draw(scratch, 0.2499), 700);
  EXPECT_EQ(draw(scratch, 0.25), 1300);
  EXPECT_EQ(draw(scratch, 1.0 - 0x1p-53), 1300);
  EXPECT_EQ(draw(scratch, 1.0), 1300);  // rounding may carry u · total up to the total
}

}  // namespace
}  // namespace tandem
