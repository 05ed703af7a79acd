// A batch filled up to 2, 4 or 8 sequences with dummies, as a server with fixed batch sizes does: the real sequences'
// logits, recurrent states, convolution histories and latents are bit for bit those of the batch without dummies,
// wherever the dummies sit, whatever they hold, prefill and decode.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/cat.h"
#include "model/random_model.h"

namespace tandem {
namespace {

using test::all_equal_bits;
using test::BackendFixture;
using test::for_each_backend;
using test::random_shape;
using test::random_tokens;
using test::RandomModel;
using test::SmallShape;

struct Member {
  SequenceCache* cache = nullptr;
  std::vector<TokenId> tokens;
};

// One step over all members; each one's rows of logits.
std::vector<std::vector<float>> step(const ExecContext& ctx, const RandomModel& model, std::span<const Member> batch,
                                     StepMode mode) {
  StepPlan plan;
  std::vector<SequenceCacheView> views;
  for (const Member& member : batch) {
    const auto count = static_cast<int64_t>(member.tokens.size());
    const int64_t done = member.cache->length();
    EXPECT_TRUE(member.cache->reserve(done + count).is_ok());
    plan.tokens.insert(plan.tokens.end(), member.tokens.begin(), member.tokens.end());
    plan.sequences.push_back({.cache = static_cast<int64_t>(views.size()),
                              .num_tokens = count,
                              .num_computed_tokens = done,
                              .mode = mode,
                              .logits = LogitsWanted::kAll,
                              .captures = {}});
    views.push_back(member.cache->view());
  }
  const auto logits = model.model().forward(ctx, plan, views);
  TANDEM_CHECK(logits.is_ok(), logits.status().message());
  std::vector<std::vector<float>> rows;
  const float* next = logits.value().data;
  for (const Member& member : batch) {
    const float* end = next + static_cast<int64_t>(member.tokens.size()) * logits.value().shape[1];
    rows.emplace_back(next, end);
    next = end;
  }
  return rows;
}

void expect_same_caches(const SequenceCache& actual, const SequenceCache& expected) {
  const CacheLayout& layout = expected.layout();
  for (size_t l = 0; l < expected.layers().size(); ++l) {
    SCOPED_TRACE(cat("layer ", l));
    if (const auto* state = std::get_if<KdaState>(&expected.layers()[l])) {
      const auto& other = std::get<KdaState>(actual.layers()[l]);
      EXPECT_EQ(other.position, state->position);
      EXPECT_EQ(std::memcmp(other.recurrent, state->recurrent, static_cast<size_t>(layout.recurrent_bytes())), 0);
      // With a kernel of width 1 there is no history, and maybe no memory.
      if (layout.conv_bytes() == 0) continue;
      EXPECT_EQ(std::memcmp(other.conv, state->conv, static_cast<size_t>(layout.conv_bytes())), 0);
      continue;
    }
    const auto& latent = std::get<MlaLatent>(expected.layers()[l]);
    const auto& other = std::get<MlaLatent>(actual.layers()[l]);
    ASSERT_EQ(other.length, latent.length);
    const auto row_bytes = static_cast<size_t>(layout.latent_row_bytes());
    for (int64_t t = 0; t < latent.length; ++t) {
      const auto page = static_cast<size_t>(t / latent.page_tokens);
      const size_t offset = static_cast<size_t>(t % latent.page_tokens) * row_bytes;
      EXPECT_EQ(std::memcmp(other.pages[page] + offset, latent.pages[page] + offset, row_bytes), 0) << "row " << t;
    }
  }
}

// What a dummy holds when the batch starts, and where it sits.
enum class Dummies { kBehind, kInFront, kBetween, kFullOfNan };
constexpr std::array<Dummies, 4> kDummies = {Dummies::kBehind, Dummies::kInFront, Dummies::kBetween,
                                             Dummies::kFullOfNan};

void poison(SequenceCache& cache) {
  for (LayerCache& layer : cache.view().layers) {
    const auto* state = std::get_if<KdaState>(&layer);
    if (state == nullptr) continue;
    std::memset(state->recurrent, 0xff, static_cast<size_t>(cache.layout().recurrent_bytes()));  // NaN in f32 and bf16
  }
}

// The batch in plan order: indices of real sequences, −1 for a dummy.
std::vector<int> seats(int real, int size, Dummies kind) {
  std::vector<int> order;
  const int dummies = size - real;
  if (kind == Dummies::kInFront) order.assign(static_cast<size_t>(dummies), -1);
  for (int s = 0; s < real; ++s) {
    if (kind == Dummies::kBetween && static_cast<int>(order.size()) - s < dummies) order.push_back(-1);
    order.push_back(s);
  }
  order.resize(static_cast<size_t>(size), -1);
  return order;
}

// Two prefill steps and two decode steps, unpadded and padded side by side.
void check_padding(BackendFixture& backend, const RandomModel& model, DType dtype, int real, int size, Dummies kind) {
  std::vector<SequenceCache> plain, padded, dummies;
  for (int s = 0; s < real; ++s) {
    plain.push_back(model.new_cache(dtype));
    padded.push_back(model.new_cache(dtype));
  }
  for (int s = real; s < size; ++s) dummies.push_back(model.new_cache(dtype));
  if (kind == Dummies::kFullOfNan) std::for_each(dummies.begin(), dummies.end(), poison);
  const std::vector<int> order = seats(real, size, kind);
  const std::vector<int64_t> lengths = {19, 6, 1, 1};
  for (size_t i = 0; i < lengths.size(); ++i) {
    SCOPED_TRACE(cat("step ", i));
    const StepMode mode = i < 2 ? StepMode::kPrefill : StepMode::kDecode;
    std::vector<Member> alone;
    for (int s = 0; s < real; ++s) {
      // Unequal lengths in prefill, as in a real batch.
      const int64_t count = mode == StepMode::kPrefill ? lengths[i] + 5 * s : 1;
      alone.push_back({&plain[static_cast<size_t>(s)],
                       random_tokens(count, model.config().vocab_size, 100 * i + static_cast<uint64_t>(s))});
    }
    std::vector<Member> batch;
    size_t next_dummy = 0;
    for (const int seat : order) {
      if (seat >= 0) {
        batch.push_back({&padded[static_cast<size_t>(seat)], alone[static_cast<size_t>(seat)].tokens});
      } else {
        const size_t count = mode == StepMode::kPrefill && next_dummy % 2 == 1 ? 7 : 1;
        batch.push_back({&dummies[next_dummy++], std::vector<TokenId>(count, TokenId(0))});
      }
    }
    const auto expected = step(backend.ctx(), model, alone, mode);
    const auto actual = step(backend.ctx(), model, batch, mode);
    for (size_t b = 0; b < order.size(); ++b) {
      if (order[b] < 0) continue;
      const auto s = static_cast<size_t>(order[b]);
      SCOPED_TRACE(cat("sequence ", s));
      EXPECT_TRUE(all_equal_bits(actual[b], expected[s]));
      expect_same_caches(padded[s], plain[s]);
    }
  }
}

// The default shape meets every combination; random shapes of the family one kind of dummies at each batch size.
TEST(PaddedBatch, RealSequencesKeepEveryBit) {
  constexpr std::array<std::pair<int, int>, 5> kSizes = {{{1, 2}, {1, 4}, {3, 4}, {1, 8}, {5, 8}}};
  for_each_backend([&](BackendFixture& backend) {
    const size_t last_seed = backend.backend() == KernelBackend::kRef ? 1 : 4;
    for (size_t seed = 0; seed <= last_seed; ++seed) {
      const SmallShape shape = seed == 0 ? SmallShape{} : random_shape(seed);
      SCOPED_TRACE(cat("seed ", seed, " ", shape.json()));
      const RandomModel model(shape, seed);
      for (size_t i = 0; i < kSizes.size(); ++i) {
        for (size_t kind = 0; kind < kDummies.size(); ++kind) {
          if (seed > 0 && kind != (seed + i) % kDummies.size()) continue;
          SCOPED_TRACE(cat(kSizes[i].first, " of ", kSizes[i].second, ", dummies ", kind));
          check_padding(backend, model, (seed + i) % 2 == 0 ? DType::kF32 : DType::kBF16, kSizes[i].first,
                        kSizes[i].second, kDummies[kind]);
        }
      }
    }
  });
}

}  // namespace
}  // namespace tandem
