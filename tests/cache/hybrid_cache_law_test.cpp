// The laws of the hybrid cache with a real model: a prompt that resumes gives the logits of one that does not, and a
// preempted sequence those of one that was never touched.
//
//   Bitwise where the grid allows (ADR 0002): steps of a prompt end on multiples of the KDA chunk, so the rows computed
//   warm and cold are cut at the same places. Elsewhere within the tolerance of tests/model/laws_test.cpp, 4e-5 of the
//   largest logit: two f32 evaluations of one function.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "base/cat.h"
#include "cache/hybrid_cache.h"
#include "model/random_model.h"
#include "support/effort.h"

namespace tandem {
namespace {

using test::all_close;
using test::all_equal_bits;
using test::BackendFixture;
using test::max_abs;
using test::random_tokens;
using test::RandomModel;
using test::SmallShape;
using Tokens = std::vector<TokenId>;

// A model and a cache that serve sequences one step at a time.
class Server {
 public:
  Server(const SmallShape& shape, uint64_t seed, HybridCacheOptions options, DType dtype = DType::kF32)
      : backend_(available_backends(detect_cpu_features()).back()), random_(shape, seed), dtype_(dtype) {
    options.hash_unit = options.hash_unit == kDefaultHashUnit ? 16 : options.hash_unit;
    options.checkpoint_interval = options.checkpoint_interval == 32768 ? 0 : options.checkpoint_interval;
    options.identity = "law";
    auto made = HybridCache::create(make_cache_layout(random_.config(), dtype), options);
    TANDEM_CHECK(made.is_ok(), made.status().message());
    cache_ = std::move(made).value();
  }
  HybridCache& cache() { return *cache_; }
  int64_t vocab() const { return random_.config().vocab_size; }

  // One step of `count` rows; returns the last row's logits.
  std::vector<float> step(SeqId id, const Tokens& tokens, int64_t count, StepMode mode) {
    TANDEM_CHECK(cache_->prepare_step(id, count), "room for a step");
    auto logits = run_planned(id, tokens, count, mode);
    const Status status = cache_->commit_step(id, rows(id, tokens, count));
    TANDEM_CHECK(status.is_ok(), status.message());
    return {logits.end() - vocab(), logits.end()};
  }

  // The planned rows through the model, without a commit; every row's logits.
  std::vector<float> run_planned(SeqId id, const Tokens& tokens, int64_t count, StepMode mode) {
    StepPlan plan;
    const auto step_rows = rows(id, tokens, count);
    plan.tokens.assign(step_rows.begin(), step_rows.end());
    plan.sequences.push_back({.cache = 0,
                              .num_tokens = count,
                              .num_computed_tokens = cache_->length(id),
                              .mode = mode,
                              .logits = LogitsWanted::kAll,
                              .captures = {}});
    std::vector<SequenceCacheView> views = {cache_->view(id)};
    for (const PlannedCapture& capture : cache_->captures(id)) {
      plan.sequences[0].captures.push_back({capture.num_tokens, static_cast<int64_t>(views.size())});
      views.push_back(capture.view);
    }
    const auto logits = random_.model().forward(backend_.ctx(), plan, views);
    TANDEM_CHECK(logits.is_ok(), logits.status().message());
    const MatrixView<float>& all = logits.value();
    return {all.data, all.data + all.shape[0] * all.shape[1]};
  }

  // The rest of the prompt in steps that end on multiples of `chunk`, counted from token 0.
  std::vector<float> prefill(SeqId id, const Tokens& tokens, int64_t chunk) {
    std::vector<float> last;
    while (cache_->length(id) < static_cast<int64_t>(tokens.size())) {
      const int64_t done = cache_->length(id);
      const int64_t end = std::min((done / chunk + 1) * chunk, static_cast<int64_t>(tokens.size()));
      last = step(id, tokens, end - done, StepMode::kPrefill);
    }
    return last;
  }

  // Without the hybrid cache, the prompt in steps of `chunk`.
  std::vector<float> cold(const Tokens& tokens, int64_t num_decoded, int64_t chunk = 1 << 20) {
    SequenceCache cache = random_.new_cache(dtype_);
    const auto count = static_cast<int64_t>(tokens.size());
    const Tokens prompt(tokens.begin(), tokens.end() - num_decoded);
    auto logits = test::run_chunks(backend_.ctx(), random_, cache, prompt, chunk, StepMode::kPrefill);
    for (int64_t i = count - num_decoded; i < count; ++i) {
      logits = test::run_rows(backend_.ctx(), random_, cache, tokens, i, i + 1, StepMode::kDecode);
    }
    return {logits.end() - vocab(), logits.end()};
  }

 private:
  std::span<const TokenId> rows(SeqId id, const Tokens& tokens, int64_t count) const {
    return std::span(tokens).subspan(static_cast<size_t>(cache_->length(id)), static_cast<size_t>(count));
  }
  BackendFixture backend_;
  RandomModel random_;
  DType dtype_;
  std::unique_ptr<HybridCache> cache_;
};

SmallShape shape_of(std::vector<int64_t> mla_layers, int64_t layers = 5) {
  SmallShape shape;
  shape.layers = layers;
  shape.mla_layers = std::move(mla_layers);
  shape.hidden = 32;
  shape.vocab = 64;
  shape.kda_head_dim = 16;
  return shape;
}

Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Families of conversations in a pool of a few: stems shared and cut anywhere, replies decoded, some cancelled, and
// prefixes evicted all the time. `check` compares the warm logits with the cold ones. `chunk`: of every step, or any.
template <class Check>
void run_family(Server& server, uint64_t seed, bool replies_are_stems, std::optional<int64_t> chunk,
                const Check& check) {
  std::mt19937_64 random(seed);
  // Replies are of other tokens than prompts: what was decoded is only met again when a reply is a stem.
  const int64_t half = server.vocab() / 2;
  std::vector<Tokens> said = {random_tokens(40, half, seed)};
  int64_t hits = 0;
  for (int32_t turn = 0; turn < 24; ++turn) {
    const Tokens& stem = said[random() % said.size()];
    const auto length = static_cast<int64_t>(stem.size());
    const auto cut = static_cast<int64_t>(random() % 2 == 0 ? stem.size() : random() % (stem.size() + 1));
    const int64_t near = random() % 2 == 0 ? cut : cut / 16 * 16 + static_cast<int64_t>(random() % 3) - 1;
    Tokens prompt(stem.begin(), stem.begin() + std::clamp<int64_t>(near, 0, length));
    prompt = joined(prompt, random_tokens(1 + static_cast<int64_t>(random() % 40), half, random()));
    const SeqId id(turn);
    const auto match = server.cache().admit(id, prompt, {}, 1);
    ASSERT_TRUE(match.has_value());
    hits += match->hit_tokens > 0 ? 1 : 0;
    if (random() % 6 == 0 && prompt.size() > 60 && match->hit_tokens == 0) {  // cancelled on the way
      server.step(id, prompt, 48, StepMode::kPrefill);
      server.cache().release(id);
      continue;
    }
    const auto any = static_cast<int64_t>(16 * (1 + random() % 4));  // steps that end on the KDA chunk
    const auto logits = server.prefill(id, prompt, chunk.value_or(any));
    ASSERT_TRUE(check(logits, server.cold(prompt, 0, chunk.value_or(1 << 20))))
        << "hit " << match->hit_tokens << " of " << prompt.size();
    Tokens reply = prompt;
    std::vector<float> last;
    const auto num_replied = static_cast<int64_t>(1 + random() % 30);
    for (int64_t i = 0; i < num_replied; ++i) {
      reply.emplace_back(static_cast<int32_t>(half + static_cast<int64_t>(random() % static_cast<uint64_t>(half))));
      last = server.step(id, reply, 1, StepMode::kDecode);
    }
    ASSERT_TRUE(check(last, server.cold(reply, num_replied, chunk.value_or(1 << 20))));
    server.cache().release(id);
    said.push_back(replies_are_stems ? reply : prompt);
    if (said.back().size() > 200) said.erase(said.begin() + 1, said.end());
    const Status status = server.cache().audit(true);
    ASSERT_TRUE(status.is_ok()) << status.message();
  }
  EXPECT_GT(hits, 0);
}

TEST(HybridCacheLaws, WarmEqualsColdInMultiTurnFamilies) {
  const std::vector<SmallShape> shapes = {shape_of({3}), shape_of({1, 4}), shape_of({}, 3), shape_of({0, 1, 2}, 3)};
  const auto close = [](const std::vector<float>& warm, const std::vector<float>& cold) {
    return all_close(warm, cold, 4e-5f * std::max(1.f, max_abs(cold)));
  };
  for (uint64_t seed = 0; seed < static_cast<uint64_t>(std::max<int64_t>(test::effort(10), 4)); ++seed) {
    SCOPED_TRACE(cat("seed ", seed));
    for (const bool is_exact : {true, false}) {
      // A bf16 state is rounded where a step or a checkpoint ends it: bitwise when these are the same places.
      const DType dtype = is_exact && seed / 4 % 2 == 1 ? DType::kBF16 : DType::kF32;
      Server server(shapes[seed % 4], seed,
                    {.budget_bytes = static_cast<int64_t>(seed % 3 + 1) * (int64_t{400} << 10),
                     .message_end = TokenId(5),
                     .poison = seed % 2 == 0},
                    dtype);
      if (is_exact) {
        const std::optional<int64_t> chunk = dtype == DType::kBF16 ? std::optional<int64_t>(16) : std::nullopt;
        run_family(server, seed, false, chunk,
                   [](const auto& warm, const auto& cold) { return all_equal_bits(warm, cold); });
      } else {
        run_family(server, seed, true, {}, close);
      }
      if (HasFatalFailure()) return;
    }
  }
}

// A prefix that was decoded is taken up by a prompt that is prefilled: the state came by the recurrent form, a cold run
// computes it in chunks.
TEST(HybridCacheLaws, ResumingWhatWasDecodedIsWithinRounding) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Server server(shape_of({1, 4}), seed, {.budget_bytes = int64_t{16} << 20});
    const Tokens prompt = random_tokens(20, server.vocab(), seed);
    const Tokens reply = joined(prompt, random_tokens(50, server.vocab(), seed + 50));
    ASSERT_TRUE(server.cache().admit(SeqId(1), prompt, {}, 1));
    server.prefill(SeqId(1), prompt, 512);
    while (server.cache().length(SeqId(1)) < 70) server.step(SeqId(1), reply, 1, StepMode::kDecode);
    server.cache().release(SeqId(1));
    const Tokens next = joined(reply, random_tokens(13, server.vocab(), seed + 90));
    const auto match = server.cache().admit(SeqId(2), next, {}, 1);
    ASSERT_EQ(match->hit_tokens, 64);
    const auto cold = server.cold(next, 0);
    EXPECT_TRUE(all_close(server.prefill(SeqId(2), next, 512), cold, 4e-5f * std::max(1.f, max_abs(cold))));
  }
}

TEST(HybridCacheLaws, AnInterruptedSequenceGoesOnBitwise) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    Server server(seed % 3 == 0 ? shape_of({}, 3) : shape_of({3}), seed, {.budget_bytes = int64_t{4} << 20},
                  seed % 2 == 0 ? DType::kF32 : DType::kBF16);
    std::mt19937_64 random(seed);
    const Tokens prompt = random_tokens(33 + static_cast<int64_t>(seed), server.vocab(), seed);
    Tokens all = prompt;
    ASSERT_TRUE(server.cache().admit(SeqId(1), prompt, {}, 1));
    auto last = server.prefill(SeqId(1), prompt, 16);
    for (int i = 0; i < 24; ++i) {
      if (random() % 4 == 0) {
        const auto swapped = server.cache().swap_out(SeqId(1), int64_t{1} << 30);
        ASSERT_NE(swapped, nullptr);
        // Others in between, on blocks that were its own.
        const Tokens other = random_tokens(90, server.vocab(), random());
        ASSERT_TRUE(server.cache().admit(SeqId(2), other, {}, 1));
        server.prefill(SeqId(2), other, 48);
        bool lost = false;
        ASSERT_TRUE(server.cache().swap_in(SeqId(1), *swapped, 1, lost));
        server.cache().release(SeqId(2));
      } else if (random() % 4 == 0) {
        // It goes on as a fork of itself.
        ASSERT_TRUE(server.cache().fork(SeqId(1), SeqId(3)));
        Tokens astray = joined(all, random_tokens(5, server.vocab(), random()));
        server.step(SeqId(3), astray, 5, StepMode::kDecode);
        server.cache().release(SeqId(3));
      }
      all = joined(all, random_tokens(1, server.vocab(), random()));
      last = server.step(SeqId(1), all, 1, StepMode::kDecode);
    }
    EXPECT_TRUE(all_equal_bits(last, server.cold(all, 24, 16)));
  }
}

TEST(HybridCacheLaws, AWindowCutAtItsCommitPointEqualsTokenByToken) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    Server server(seed % 3 == 0 ? shape_of({}, 3) : shape_of({1, 4}), seed, {.budget_bytes = int64_t{4} << 20},
                  seed % 2 == 0 ? DType::kF32 : DType::kBF16);
    std::mt19937_64 random(seed);
    const Tokens prompt = random_tokens(13, server.vocab(), seed);
    const Tokens all = joined(prompt, random_tokens(40, server.vocab(), seed + 7));
    ASSERT_TRUE(server.cache().admit(SeqId(1), prompt, {}, 1));
    server.prefill(SeqId(1), prompt, 512);
    while (server.cache().length(SeqId(1)) < 45) {
      const int64_t done = server.cache().length(SeqId(1));
      const auto window = static_cast<int64_t>(1 + random() % 8);
      const auto commit = static_cast<int64_t>(1 + random() % static_cast<uint64_t>(window));
      Tokens drafted(all.begin(), all.begin() + done + commit);
      drafted = joined(drafted, random_tokens(window - commit, server.vocab(), random()));
      ASSERT_TRUE(server.cache().prepare_window(SeqId(1), window, commit));
      const auto logits = server.run_planned(SeqId(1), drafted, window, StepMode::kDecode);
      const auto rows = std::span(drafted).subspan(static_cast<size_t>(done));
      ASSERT_TRUE(server.cache().commit_window(SeqId(1), rows, commit).is_ok());
      const std::vector<float> at_commit(logits.begin() + (commit - 1) * server.vocab(),
                                         logits.begin() + commit * server.vocab());
      const int64_t length = server.cache().length(SeqId(1));
      // Rows of one window are rounded to bf16 states where it ends; with f32 states the cut does not matter.
      if (seed % 2 == 0) {
        ASSERT_TRUE(all_equal_bits(at_commit, server.cold({all.begin(), all.begin() + length}, length - 13)));
      }
      ASSERT_TRUE(server.cache().audit(true).is_ok());
    }
  }
}

// 200 prompts twice with the cache on, unwritten memory poisoned: the second pass is the first (field report 26).
TEST(HybridCacheLaws, TheSecondPassOfManyPromptsIsTheFirst) {
  Server server(shape_of({1, 4}), 3, {.budget_bytes = int64_t{16} << 20, .poison = true});
  const Tokens preamble = random_tokens(37, server.vocab(), 1);
  std::vector<std::vector<float>> first;
  const auto count = static_cast<int32_t>(test::effort(200));
  for (int32_t pass = 0; pass < 2; ++pass) {
    for (int32_t i = 0; i < count; ++i) {
      const Tokens prompt = joined(preamble, random_tokens(1 + i % 50, server.vocab(), static_cast<uint64_t>(i)));
      const auto match = server.cache().admit(SeqId(i), prompt, {}, 1);
      ASSERT_TRUE(match.has_value());
      const auto logits = server.prefill(SeqId(i), prompt, 64);
      server.cache().release(SeqId(i));
      if (pass == 0) {
        first.push_back(logits);
      } else {
        ASSERT_TRUE(all_equal_bits(logits, first[static_cast<size_t>(i)])) << i;
        ASSERT_GE(match->hit_tokens, 32) << i;
      }
    }
  }
  EXPECT_EQ(server.cache().stats().refused_non_finite, 0);
}

}  // namespace
}  // namespace tandem
