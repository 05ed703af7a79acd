// A plan that wants few logits computes less behind the last attention and nothing else changes: logits and caches are
// bit for bit those of a step that wants them all, in every variant of the model.
#include <gtest/gtest.h>

#include <cstring>

#include "base/cat.h"
#include "model/random_model.h"
#include "support/effort.h"

namespace tandem::test {
namespace {

struct Sequence {
  int64_t before;  // tokens already in the cache
  int64_t rows;
  StepMode mode;
  LogitsWanted wanted;
};

// Everything that the caches hold: states, conv histories, latents.
std::vector<std::byte> contents(const RandomModel& model, SequenceCache& cache) {
  const CacheLayout layout = make_cache_layout(model.config(), DType::kF32, 16);
  std::vector<std::byte> bytes;
  const auto append = [&](const void* data, int64_t count) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes.insert(bytes.end(), begin, begin + count);
  };
  for (const LayerCache& layer : cache.view().layers) {
    if (const auto* state = std::get_if<KdaState>(&layer)) {
      append(state->recurrent, layout.recurrent_bytes());
      append(state->conv, layout.conv_bytes());
    } else {
      const auto& latent = std::get<MlaLatent>(layer);
      for (int64_t t = 0; t < latent.length; ++t) {
        append(latent.pages[static_cast<size_t>(t / 16)] + t % 16 * layout.latent_row_bytes(),
               layout.latent_row_bytes());
      }
    }
  }
  return bytes;
}

struct Outcome {
  std::vector<std::vector<float>> logits;  // of each sequence, the rows it wanted
  std::vector<std::vector<std::byte>> caches;
};

Outcome run_step(const ExecContext& ctx, const RandomModel& model, const std::vector<Sequence>& sequences,
                 bool want_all, StepObserver* observer = nullptr) {
  std::vector<SequenceCache> caches;
  std::vector<SequenceCacheView> views;
  StepPlan plan;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const Sequence& sequence = sequences[s];
    const int64_t length = sequence.before + sequence.rows;
    const auto tokens = random_tokens(length, model.config().vocab_size, 40 + s);
    caches.push_back(model.new_cache());
    EXPECT_TRUE(caches.back().reserve(length).is_ok());
    if (sequence.before > 0) run_rows(ctx, model, caches.back(), tokens, 0, sequence.before, StepMode::kPrefill);
    EXPECT_TRUE(caches.back().reserve(length).is_ok());
    plan.tokens.insert(plan.tokens.end(), tokens.begin() + sequence.before, tokens.end());
    plan.sequences.push_back({.cache = static_cast<int64_t>(s),
                              .num_tokens = sequence.rows,
                              .num_computed_tokens = sequence.before,
                              .mode = sequence.mode,
                              .logits = want_all ? LogitsWanted::kAll : sequence.wanted,
                              .captures = {}});
  }
  for (SequenceCache& cache : caches) views.push_back(cache.view());
  const auto logits = model.model().forward(ctx, plan, views, observer);
  EXPECT_TRUE(logits.is_ok()) << logits.status().message();
  Outcome outcome;
  int64_t next = 0;
  for (const Sequence& sequence : sequences) {
    const int64_t given = want_all || sequence.wanted == LogitsWanted::kAll ? sequence.rows
                          : sequence.wanted == LogitsWanted::kLast          ? 1
                                                                            : 0;
    const int64_t wanted = sequence.wanted == LogitsWanted::kAll    ? sequence.rows
                           : sequence.wanted == LogitsWanted::kLast ? 1
                                                                    : 0;
    next += given;
    EXPECT_LE(next, logits.value().shape[0]);
    std::vector<float> rows;
    for (int64_t i = next - wanted; i < next; ++i) {
      rows.insert(rows.end(), logits.value().row(i), logits.value().row(i) + logits.value().shape[1]);
    }
    outcome.logits.push_back(rows);
  }
  EXPECT_EQ(next, logits.value().shape[0]);
  for (SequenceCache& cache : caches) outcome.caches.push_back(contents(model, cache));
  return outcome;
}

void expect_same(const Outcome& actual, const Outcome& expected) {
  for (size_t s = 0; s < expected.logits.size(); ++s) {
    EXPECT_TRUE(all_equal_bits(actual.logits[s], expected.logits[s])) << "sequence " << s;
    EXPECT_TRUE(actual.caches[s] == expected.caches[s]) << "cache of sequence " << s;
  }
}

const std::vector<std::vector<Sequence>> kPlans = {
    {{0, 37, StepMode::kPrefill, LogitsWanted::kLast}},
    {{32, 20, StepMode::kPrefill, LogitsWanted::kNone}},
    {{0, 18, StepMode::kPrefill, LogitsWanted::kNone},
     {16, 21, StepMode::kPrefill, LogitsWanted::kLast},
     {9, 3, StepMode::kDecode, LogitsWanted::kAll},
     {5, 4, StepMode::kDecode, LogitsWanted::kLast},
     {0, 1, StepMode::kPrefill, LogitsWanted::kLast}},
};

TEST(WantedRows, LogitsAndCachesAreThoseOfAllRows) {
  for_each_backend([](BackendFixture& backend) {
    for (uint64_t seed = 1; seed <= static_cast<uint64_t>(effort(12)); ++seed) {
      SCOPED_TRACE(cat("seed ", seed, " ", random_shape(seed).json()));
      const RandomModel model(random_shape(seed), seed);
      for (const auto& plan : kPlans) {
        expect_same(run_step(backend.ctx(), model, plan, false), run_step(backend.ctx(), model, plan, true));
      }
    }
  });
}

TEST(WantedRows, EveryLastLayerInBothActivationTypes) {
  for_each_backend([](BackendFixture& backend) {
    for (const std::vector<int64_t>& mla : {std::vector<int64_t>{1}, {3}}) {  // the last layer is KDA, then MLA
      for (const int64_t block : {0, 3, 4}) {
        for (const bool full : {false, true}) {
          for (const DType activations : {DType::kF32, DType::kBF16}) {
            SmallShape shape;
            shape.layers = 4;
            shape.mla_layers = mla;
            shape.block = full ? 0 : block;
            shape.full_attn_res = full;
            ModelOptions options;
            options.activation_dtype = activations;
            SCOPED_TRACE(shape.json());
            const RandomModel model(shape, 7, options);
            expect_same(run_step(backend.ctx(), model, kPlans[2], false),
                        run_step(backend.ctx(), model, kPlans[2], true));
          }
        }
      }
    }
  });
}

// An observer is shown every row of every layer, whatever the plan wants.
TEST(WantedRows, AnObserverSeesAllRows) {
  class Counter : public StepObserver {
   public:
    void on_tensor(Tap, int64_t, const MatrixView<const float>& rows) override { rows_ += rows.shape[0]; }
    int64_t rows_ = 0;
  };
  for_each_backend([](BackendFixture& backend) {
    const RandomModel model(SmallShape{}, 3);
    Counter all, few;
    const Outcome expected = run_step(backend.ctx(), model, kPlans[0], true, &all);
    expect_same(run_step(backend.ctx(), model, kPlans[0], false, &few), expected);
    EXPECT_EQ(few.rows_, all.rows_);
    EXPECT_GT(all.rows_, 0);
  });
}

}  // namespace
}  // namespace tandem::test
