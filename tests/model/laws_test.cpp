// The laws of the forward pass, on random small models of every variant: how the work is cut must not matter.
//
//   Bitwise, whatever the backend: batch composition and order (rows are independent of their neighbours); decode split
//   into any steps; prefill split at multiples of the KDA chunk. Within rounding: prefill ≡ decode, other splits.
//   Tolerance of the second kind: two f32 evaluations of one function through up to 7 layers of a random model. The
//   golden models agree with independent code within 7e-5 at logits of 12 (tests/data/golden/README.md), that is 6e-6
//   relative; random shapes get the README's own acceptance, 5e-4 at 12 = 4e-5 of the largest logit.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

#include "base/cat.h"
#include "model/random_model.h"
#include "support/effort.h"

namespace tandem {
namespace {

using test::all_close;
using test::all_equal_bits;
using test::BackendFixture;
using test::for_each_backend;
using test::max_abs;
using test::random_shape;
using test::random_tokens;
using test::RandomModel;
using test::run_chunks;
using test::run_rows;
using test::SmallShape;

constexpr auto kNumShapes = static_cast<uint64_t>(test::effort(24));

float logit_tolerance(std::span<const float> logits) { return 4e-5f * std::max(1.f, max_abs(logits)); }

TEST(Laws, PrefillEqualsDecode) {
  for_each_backend([](BackendFixture& backend) {
    for (uint64_t seed = 1; seed <= kNumShapes; ++seed) {
      SCOPED_TRACE(cat("seed ", seed, " ", random_shape(seed).json()));
      const RandomModel model(random_shape(seed), seed);
      const auto tokens = random_tokens(45, model.config().vocab_size, seed);
      SequenceCache a = model.new_cache(), b = model.new_cache();
      const auto prefill = run_chunks(backend.ctx(), model, a, tokens, 45, StepMode::kPrefill);
      const auto decode = run_chunks(backend.ctx(), model, b, tokens, 1, StepMode::kDecode);
      EXPECT_TRUE(all_close(prefill, decode, logit_tolerance(decode)));
    }
  });
}

TEST(Laws, AnyChunkingEqualsOneChunk) {
  for_each_backend([](BackendFixture& backend) {
    for (uint64_t seed = 1; seed <= kNumShapes; ++seed) {
      SCOPED_TRACE(cat("seed ", seed, " ", random_shape(seed).json()));
      const RandomModel model(random_shape(seed), seed);
      const auto tokens = random_tokens(70, model.config().vocab_size, seed + 100);
      SequenceCache one = model.new_cache();
      const auto whole = run_chunks(backend.ctx(), model, one, tokens, 70, StepMode::kPrefill);
      for (const int64_t chunk : {int64_t{1}, int64_t{5}, int64_t{17}, int64_t(1 + seed % 40)}) {
        SequenceCache cache = model.new_cache();
        const auto split = run_chunks(backend.ctx(), model, cache, tokens, chunk, StepMode::kPrefill);
        EXPECT_TRUE(all_close(split, whole, logit_tolerance(whole))) << "chunk " << chunk;
      }
      for (const int64_t chunk : {16, 32, 48}) {
        SequenceCache cache = model.new_cache();
        const auto split = run_chunks(backend.ctx(), model, cache, tokens, chunk, StepMode::kPrefill);
        EXPECT_TRUE(all_equal_bits(split, whole)) << "chunk " << chunk << ", on the KDA grid";
      }
    }
  });
}

TEST(Laws, DecodeWindowsAreBitwiseSplitInvariant) {
  for_each_backend([](BackendFixture& backend) {
    for (uint64_t seed = 1; seed <= kNumShapes; ++seed) {
      SCOPED_TRACE(cat("seed ", seed));
      const RandomModel model(random_shape(seed), seed);
      const auto tokens = random_tokens(21, model.config().vocab_size, seed + 200);
      SequenceCache one = model.new_cache(), windows = model.new_cache();
      const auto single = run_chunks(backend.ctx(), model, one, tokens, 1, StepMode::kDecode);
      const auto window = run_chunks(backend.ctx(), model, windows, tokens, 4, StepMode::kDecode);
      EXPECT_TRUE(all_equal_bits(window, single));
    }
  });
}

// One step of `count` tokens for each of several sequences in one plan; returns each sequence's rows.
std::vector<std::vector<float>> run_batch(const ExecContext& ctx, const RandomModel& model,
                                          std::vector<SequenceCache*> caches,
                                          const std::vector<std::vector<TokenId>>& tokens,
                                          const std::vector<StepMode>& modes) {
  StepPlan plan;
  std::vector<SequenceCacheView> views;
  for (size_t s = 0; s < caches.size(); ++s) {
    const int64_t done = caches[s]->length();
    EXPECT_TRUE(caches[s]->reserve(done + static_cast<int64_t>(tokens[s].size())).is_ok());
    plan.tokens.insert(plan.tokens.end(), tokens[s].begin(), tokens[s].end());
    plan.sequences.push_back({.cache = static_cast<int64_t>(s),
                              .num_tokens = static_cast<int64_t>(tokens[s].size()),
                              .num_computed_tokens = done,
                              .mode = modes[s],
                              .logits = LogitsWanted::kAll,
                              .captures = {}});
    views.push_back(caches[s]->view());
  }
  const auto logits = model.model().forward(ctx, plan, views);
  EXPECT_TRUE(logits.is_ok()) << logits.status().message();
  std::vector<std::vector<float>> rows;
  const float* next = logits.value().data;
  for (const auto& sequence : tokens) {
    const int64_t elements = static_cast<int64_t>(sequence.size()) * logits.value().shape[1];
    rows.emplace_back(next, next + elements);
    next += elements;
  }
  return rows;
}

TEST(Laws, NeighboursAndOrderDoNotMatter) {
  for_each_backend([](BackendFixture& backend) {
    for (uint64_t seed = 1; seed <= kNumShapes; ++seed) {
      SCOPED_TRACE(cat("seed ", seed));
      const RandomModel model(random_shape(seed), seed);
      const std::vector<int64_t> lengths = {1, 19, 7, 33};
      const std::vector<StepMode> modes = {StepMode::kDecode, StepMode::kPrefill, StepMode::kDecode,
                                           StepMode::kPrefill};
      std::vector<std::vector<TokenId>> tokens;
      std::vector<std::vector<float>> alone;
      for (size_t s = 0; s < lengths.size(); ++s) {
        tokens.push_back(random_tokens(lengths[s], model.config().vocab_size, seed * 10 + s));
        SequenceCache cache = model.new_cache();
        alone.push_back(run_batch(backend.ctx(), model, {&cache}, {tokens[s]}, {modes[s]})[0]);
      }
      for (const std::vector<size_t>& order : {std::vector<size_t>{0, 1, 2, 3}, {3, 1, 0, 2}, {2, 3}}) {
        std::vector<SequenceCache> caches;
        for (size_t i = 0; i < order.size(); ++i) caches.push_back(model.new_cache());
        std::vector<SequenceCache*> pointers;
        std::vector<std::vector<TokenId>> batch_tokens;
        std::vector<StepMode> batch_modes;
        for (size_t i = 0; i < order.size(); ++i) {
          pointers.push_back(&caches[i]);
          batch_tokens.push_back(tokens[order[i]]);
          batch_modes.push_back(modes[order[i]]);
        }
        const auto batch = run_batch(backend.ctx(), model, pointers, batch_tokens, batch_modes);
        for (size_t i = 0; i < order.size(); ++i) {
          EXPECT_TRUE(all_equal_bits(batch[i], alone[order[i]])) << "sequence " << order[i];
        }
      }
    }
  });
}

TEST(Laws, NanInOneStateFailsThatSequenceAlone) {
  for_each_backend([](BackendFixture& backend) {
    const RandomModel model(SmallShape{}, 21);
    const auto tokens = random_tokens(9, model.config().vocab_size, 22);
    SequenceCache alone = model.new_cache(), healthy = model.new_cache(), broken = model.new_cache();
    for (SequenceCache* cache : {&alone, &healthy, &broken}) {
      run_chunks(backend.ctx(), model, *cache, {tokens.begin(), tokens.begin() + 8}, 8, StepMode::kPrefill);
    }
    static_cast<float*>(std::get<KdaState>(broken.view().layers[0]).recurrent)[5] = NAN;
    const std::vector<TokenId> next = {tokens[8]};
    const auto expected = run_batch(backend.ctx(), model, {&alone}, {next}, {StepMode::kDecode});
    const auto rows =
        run_batch(backend.ctx(), model, {&broken, &healthy}, {next, next}, {StepMode::kDecode, StepMode::kDecode});
    EXPECT_TRUE(all_equal_bits(rows[1], expected[0]));
    for (const float logit : rows[0]) EXPECT_TRUE(std::isnan(logit));
  });
}

// Logits of the last position after `tokens`.
std::vector<float> last_logits(BackendFixture& backend, const RandomModel& model, const std::vector<TokenId>& tokens) {
  SequenceCache cache = model.new_cache();
  const auto rows =
      run_chunks(backend.ctx(), model, cache, tokens, static_cast<int64_t>(tokens.size()), StepMode::kPrefill);
  return std::vector<float>(rows.end() - model.config().vocab_size, rows.end());
}

// The largest change of the last logits when the tokens before the last are permuted, in units of the tolerance.
float permutation_effect(BackendFixture& backend, const SmallShape& shape) {
  const RandomModel model(shape, 5);
  auto tokens = random_tokens(24, model.config().vocab_size, 6);
  const auto before = last_logits(backend, model, tokens);
  std::shuffle(tokens.begin(), tokens.end() - 1, std::mt19937(3));
  auto change = last_logits(backend, model, tokens);
  for (size_t i = 0; i < change.size(); ++i) change[i] -= before[i];
  return max_abs(change) / logit_tolerance(before);
}

// Without KDA a layer sees the set of earlier tokens, not their order. In a deeper MLA-only stack the causal mask lets
// order in: what an earlier position holds depends on which tokens came before it. So the law is stated for one layer.
TEST(Laws, PositionComesFromKda) {
  for_each_backend([](BackendFixture& backend) {
    SmallShape shape;
    shape.layers = 1;
    shape.mla_layers = {0};
    EXPECT_LE(permutation_effect(backend, shape), 1.f);
    shape.layers = 2;
    shape.mla_layers = {1};
    EXPECT_GT(permutation_effect(backend, shape), 100.f);
  });
}

TEST(Laws, CapturedStateResumesBitwise) {
  for_each_backend([](BackendFixture& backend) {
    for (uint64_t seed = 1; seed <= kNumShapes; ++seed) {
      SCOPED_TRACE(cat("seed ", seed));
      const RandomModel model(random_shape(seed), seed);
      const auto tokens = random_tokens(40, model.config().vocab_size, seed + 300);
      for (const StepMode mode : {StepMode::kPrefill, StepMode::kDecode}) {
        const std::vector<int64_t> at =
            mode == StepMode::kPrefill ? std::vector<int64_t>{16, 32} : std::vector<int64_t>{3, 9, 40};
        SequenceCache whole = model.new_cache();
        ASSERT_TRUE(whole.reserve(40).is_ok());
        std::vector<SequenceCache> captured;
        for (size_t i = 0; i < at.size(); ++i) captured.push_back(model.new_cache());
        StepPlan plan;
        plan.tokens = tokens;
        SequenceStep step{.cache = 0,
                          .num_tokens = 40,
                          .num_computed_tokens = 0,
                          .mode = mode,
                          .logits = LogitsWanted::kAll,
                          .captures = {}};
        std::vector<SequenceCacheView> views = {whole.view()};
        for (size_t i = 0; i < at.size(); ++i) {
          step.captures.push_back({.num_tokens = at[i], .cache = static_cast<int64_t>(views.size())});
          views.push_back(captured[i].view());
        }
        plan.sequences = {step};
        const auto logits = model.model().forward(backend.ctx(), plan, views);
        ASSERT_TRUE(logits.is_ok()) << logits.status().message();
        const std::vector<float> rows(logits.value().data, logits.value().data + 40 * model.config().vocab_size);
        SequenceCache plain = model.new_cache();
        EXPECT_TRUE(all_equal_bits(rows, run_chunks(backend.ctx(), model, plain, tokens, 40, mode)))
            << "captures change nothing";

        for (size_t i = 0; i < at.size(); ++i) {
          if (at[i] == 40) continue;
          // The captured KDA states with the whole run's latents cut to the same length: both move together.
          for (size_t l = 0; l < captured[i].layers().size(); ++l) {
            auto& layer = captured[i].view().layers[l];
            if (auto* latent = std::get_if<MlaLatent>(&layer)) {
              *latent = std::get<MlaLatent>(whole.layers()[l]);
              latent->length = at[i];
            }
          }
          StepPlan rest;
          rest.tokens.assign(tokens.begin() + at[i], tokens.end());
          rest.sequences = {{.cache = 0,
                             .num_tokens = 40 - at[i],
                             .num_computed_tokens = at[i],
                             .mode = mode,
                             .logits = LogitsWanted::kAll,
                             .captures = {}}};
          const std::array<SequenceCacheView, 1> resumed = {captured[i].view()};
          const auto tail = model.model().forward(backend.ctx(), rest, resumed);
          ASSERT_TRUE(tail.is_ok()) << tail.status().message();
          const std::span<const float> expected =
              std::span(rows).subspan(static_cast<size_t>(at[i] * model.config().vocab_size));
          EXPECT_TRUE(all_equal_bits({tail.value().data, expected.size()}, expected)) << "resumed at " << at[i];
        }
      }
    }
  });
}

// The fault behind most wrong-prefix bugs: latents cut to n beside a KDA state of another length.
TEST(Laws, AStateOfAnotherLengthIsRefusedAndWrong) {
  for_each_backend([](BackendFixture& backend) {
    const RandomModel model(SmallShape{}, 11);
    const auto tokens = random_tokens(40, model.config().vocab_size, 12);
    SequenceCache at_24 = model.new_cache(), mixed = model.new_cache();
    run_chunks(backend.ctx(), model, at_24, {tokens.begin(), tokens.begin() + 24}, 24, StepMode::kPrefill);
    run_chunks(backend.ctx(), model, mixed, {tokens.begin(), tokens.begin() + 32}, 32, StepMode::kPrefill);
    const auto right = run_rows(backend.ctx(), model, at_24, tokens, 24, 25, StepMode::kDecode);

    for (LayerCache& layer : mixed.view().layers) {
      if (auto* latent = std::get_if<MlaLatent>(&layer)) latent->length = 24;
    }
    StepPlan plan;
    plan.tokens = {tokens[24]};
    plan.sequences = {
        {.cache = 0, .num_tokens = 1, .num_computed_tokens = 24, .mode = StepMode::kDecode, .captures = {}}};
    const std::array<SequenceCacheView, 1> views = {mixed.view()};
    const auto refused = model.model().forward(backend.ctx(), plan, views);
    ASSERT_FALSE(refused.is_ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);

    // What the refusal saves the user from: lie about the position and the logits are simply wrong.
    for (LayerCache& layer : mixed.view().layers) {
      if (auto* state = std::get_if<KdaState>(&layer)) state->position = 24;
    }
    const auto wrong = run_rows(backend.ctx(), model, mixed, tokens, 24, 25, StepMode::kDecode);
    EXPECT_FALSE(all_close(wrong, right, 100 * logit_tolerance(right)));
  });
}

TEST(Laws, Bf16CacheStaysClose) {
  for (const uint64_t seed : {3u, 4u}) {
    BackendFixture backend(available_backends(detect_cpu_features()).back());
    SmallShape shape;
    shape.experts = 0;  // no routing decision that a rounding could flip
    const RandomModel model(shape, seed);
    const auto tokens = random_tokens(40, model.config().vocab_size, seed);
    SequenceCache exact = model.new_cache(), rounded = model.new_cache(DType::kBF16);
    const auto reference = run_chunks(backend.ctx(), model, exact, tokens, 8, StepMode::kPrefill);
    const auto logits = run_chunks(backend.ctx(), model, rounded, tokens, 8, StepMode::kPrefill);
    EXPECT_TRUE(all_close(logits, reference, 2e-2f * max_abs(reference)));  // the bf16 layer tolerance of the goldens
    EXPECT_FALSE(all_equal_bits(logits, reference));
    EXPECT_LT(rounded.bytes(), exact.bytes() * 6 / 10);
  }
}

}  // namespace
}  // namespace tandem
