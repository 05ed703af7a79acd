// Streamed experts: the logits of the resident model, bit for bit, whatever the budget, the layout of the files and the
// drive do, or a refusal that names the expert.
#include "stream/expert_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <random>

#include "kernels/kernel_table.h"
#include "stream/streamed_model.h"
#include "support/effort.h"

namespace tandem {
namespace {

using test::RandomModel;
using test::StreamedModel;
using testing::HasSubstr;

class ExpertStoreTest : public testing::Test {
 protected:
  ExpertStoreTest() : kernels_(make_kernel_table(detect_cpu_features(), std::nullopt).value()) {}

  static ExpertStore::Options slots(int64_t count) {
    ExpertStore::Options options;
    options.num_slots = count;
    return options;
  }
  static std::vector<std::vector<TokenId>> sequences(const ModelConfig& config, size_t count, uint64_t seed) {
    std::vector<std::vector<TokenId>> made;
    for (size_t s = 0; s < count; ++s) {
      made.push_back(test::random_tokens(static_cast<int64_t>(14 + 3 * s), config.vocab_size, seed + s));
    }
    return made;
  }
  template <class AnyModel>
  Result<std::vector<float>> run(const AnyModel& model, const std::vector<std::vector<TokenId>>& tokens) {
    std::vector<SequenceCache> caches;
    for (size_t s = 0; s < tokens.size(); ++s) caches.push_back(model.new_cache());
    return test::run_together(exec_, model.model(), caches, tokens, 7, 5);
  }
  static int64_t experts_of(const ModelConfig& config) {
    int64_t count = 0;
    for (int64_t l = 0; l < config.num_hidden_layers; ++l) count += config.is_moe(l) ? config.num_experts : 0;
    return count;
  }

  KernelTable kernels_;
  ThreadPool pool_{2};
  Arena arena_;
  ExecContext exec_{pool_, arena_, kernels_};
};

TEST_F(ExpertStoreTest, EveryBudgetGivesTheLogitsOfTheResidentModel) {
  int64_t models = 0;
  for (uint64_t seed = 1; models < test::effort(20); ++seed) {
    test::SmallShape shape = test::random_shape(seed);
    if (shape.experts == 0) continue;
    const RandomModel resident(shape, seed);
    const int64_t all = experts_of(resident.config());
    if (all == 0) continue;
    ++models;
    for (const size_t batch : {1u, 3u}) {
      const auto tokens = sequences(resident.config(), batch, seed);
      const Result<std::vector<float>> expected = run(resident, tokens);
      ASSERT_TRUE(expected.is_ok()) << expected.status().message();
      const int64_t least = resident.config().num_experts_per_token;
      for (const int64_t count : {least, std::max(least, all / 4), std::max(least, all / 2), all}) {
        StreamedModel streamed(resident.dir(), slots(count));
        const Result<std::vector<float>> found = run(streamed, tokens);
        ASSERT_TRUE(found.is_ok()) << found.status().message();
        ASSERT_EQ(found.value(), expected.value()) << "seed " << seed << ", " << count << " of " << all;
        const ExpertStoreStats stats = streamed.store().stats();
        EXPECT_EQ(stats.hits + stats.ahead + stats.misses, stats.needed);
        EXPECT_GT(stats.misses, 0u);
        EXPECT_LE(stats.predicted_right, std::min(stats.predicted, stats.predicted_needed));
        if (count == all) {
          EXPECT_LE(stats.bytes_read, static_cast<uint64_t>(all) * streamed.store().reader().file_bytes(0));
          // Nothing leaves: an expert is read once.
          EXPECT_LE(stats.misses + stats.ahead, static_cast<uint64_t>(all));
        }
      }
    }
  }
}

TEST_F(ExpertStoreTest, ThreadsInsteadOfIoUringGiveTheSame) {
  const RandomModel resident({}, 5);
  const auto tokens = sequences(resident.config(), 2, 5);
  ExpertStore::Options options = slots(6);
  options.reader.backend = DirectReaderOptions::Backend::kThreads;
  StreamedModel streamed(resident.dir(), std::move(options));
  const Result<std::vector<float>> found = run(streamed, tokens);
  ASSERT_TRUE(found.is_ok()) << found.status().message();
  EXPECT_EQ(found.value(), run(resident, tokens).value());
}

TEST_F(ExpertStoreTest, ShortReadsAndInterruptionsChangeNothing) {
  const RandomModel resident({}, 6);
  const auto tokens = sequences(resident.config(), 2, 6);
  ExpertStore::Options options = slots(5);
  std::mt19937_64 random(6);
  options.reader.faults = [&random](const ReadAttempt& attempt) -> ReadFault {
    switch (random() % 3) {
      case 0: return {ReadFault::Kind::kError, 0, EINTR};
      case 1:  // a single block is read whole or not at all
        return {ReadFault::Kind::kShort, std::max(attempt.num_bytes / 2, kDirectAlignment), 0};
      default: return {};
    }
  };
  StreamedModel streamed(resident.dir(), std::move(options));
  const Result<std::vector<float>> found = run(streamed, tokens);
  ASSERT_TRUE(found.is_ok()) << found.status().message();
  EXPECT_EQ(found.value(), run(resident, tokens).value());
  EXPECT_GT(streamed.store().reader().stats().retries, 0u);
}

// One attempt of the run fails, a different one each time: a refusal by name or the right logits, never others; and
// once the drive is well again, the right ones.
TEST_F(ExpertStoreTest, AFailingReadIsRefusedByNameAndHarmsNothingLater) {
  const RandomModel resident({}, 7);
  const auto tokens = sequences(resident.config(), 1, 7);
  const std::vector<float> expected = run(resident, tokens).value();
  int64_t refused = 0;
  for (const ReadFault::Kind kind : {ReadFault::Kind::kError, ReadFault::Kind::kStall}) {
    for (int64_t at = 0; at < test::effort(60); at += 3) {
      ExpertStore::Options options = slots(8);
      options.reader.stall_seconds = 0.02;
      std::optional<int64_t> broken = at;
      options.reader.faults = [&](const ReadAttempt& attempt) -> ReadFault {
        if (attempt.number == broken) return {kind, 0, EIO};
        return {};
      };
      StreamedModel streamed(resident.dir(), std::move(options));
      const Result<std::vector<float>> found = run(streamed, tokens);
      broken.reset();
      if (found.is_ok()) {
        EXPECT_EQ(found.value(), expected) << at;  // a guess failed, and the expert was read again
      } else {
        ++refused;
        EXPECT_EQ(found.status().code(), StatusCode::kIo);
        EXPECT_THAT(found.status().message(), HasSubstr("layer "));
        EXPECT_THAT(found.status().message(), HasSubstr(", expert "));
        EXPECT_THAT(found.status().message(), HasSubstr(streamed.checkpoint().shard_path(0)));
        EXPECT_THAT(found.status().message(),
                    HasSubstr(kind == ReadFault::Kind::kStall ? "no answer for 0.02" : std::strerror(EIO)));
      }
      const Result<std::vector<float>> again = run(streamed, tokens);
      ASSERT_TRUE(again.is_ok()) << again.status().message();
      EXPECT_EQ(again.value(), expected) << at;
    }
  }
  EXPECT_GT(refused, 0);
}

TEST_F(ExpertStoreTest, ACorruptedBlockIsNoticedWhenTheExpertIsReadAgain) {
  const RandomModel resident({}, 8);
  const auto tokens = sequences(resident.config(), 1, 8);
  const std::vector<float> expected = run(resident, tokens).value();
  ExpertStore::Options options = slots(resident.config().num_experts_per_token);
  std::atomic<bool> corrupt = false;
  options.reader.faults = [&](const ReadAttempt& attempt) -> ReadFault {
    if (corrupt) return {ReadFault::Kind::kCorrupt, attempt.num_bytes / 2, 0};
    return {};
  };
  StreamedModel streamed(resident.dir(), std::move(options));
  for (int pass = 0; pass < 2; ++pass) {
    const Result<std::vector<float>> found = run(streamed, tokens);
    ASSERT_TRUE(found.is_ok()) << found.status().message();
    EXPECT_EQ(found.value(), expected);
  }
  corrupt = true;
  const Status refused = run(streamed, tokens).status();
  EXPECT_EQ(refused.code(), StatusCode::kIo);
  EXPECT_THAT(refused.message(), HasSubstr("its bytes differ from those that were read before"));
  EXPECT_THAT(refused.message(), HasSubstr(streamed.checkpoint().shard_path(0)));
  corrupt = false;
  EXPECT_EQ(run(streamed, tokens).value(), expected);
}

TEST_F(ExpertStoreTest, SlotsGivenBackAndTakenAgainBetweenStepsChangeNothing) {
  const RandomModel resident({}, 10);
  const int64_t all = experts_of(resident.config());
  const auto tokens = sequences(resident.config(), 2, 10);
  const std::vector<float> expected = run(resident, tokens).value();
  StreamedModel streamed(resident.dir(), slots(all));
  ExpertStore& store = streamed.store();
  EXPECT_EQ(store.num_untouched_slots(), all);
  std::mt19937_64 random(10);
  int64_t steps = 0;
  store.set_step_hook([&] {
    ++steps;
    const auto wanted = static_cast<int64_t>(random() % static_cast<uint64_t>(all + 2));
    const int64_t have = store.resize(wanted);
    EXPECT_EQ(have, store.num_slots());
    EXPECT_LE(have, all);
    EXPECT_GE(have, resident.config().num_experts_per_token);
    EXPECT_LE(store.num_untouched_slots(), have);
    return Status::ok();
  });
  EXPECT_EQ(run(streamed, tokens).value(), expected);
  EXPECT_GT(steps, 5);
  store.set_step_hook([] { return Status::exhausted("no room for this step"); });
  EXPECT_EQ(run(streamed, tokens).status().message(), "no room for this step");
  store.set_step_hook(nullptr);
  EXPECT_EQ(run(streamed, tokens).value(), expected);
}

TEST_F(ExpertStoreTest, TooFewSlotsAndModelsWithoutExpertsAreRefused) {
  test::SmallShape shape;
  const RandomModel resident(shape, 9);
  Result<Checkpoint> checkpoint = Checkpoint::open(resident.dir());
  ASSERT_TRUE(checkpoint.is_ok());
  const Result<ModelWeights> weights = bind_model_weights(checkpoint.value(), resident.config());
  ASSERT_TRUE(weights.is_ok());
  const Status few = ExpertStore::create(checkpoint.value(), resident.config(), weights.value(), slots(2)).status();
  EXPECT_EQ(few.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(few.message(), "room for 2 experts, expected at least the 3 that one token chooses in a layer");

  shape.experts = 0;
  const RandomModel dense(shape, 9);
  Result<Checkpoint> plain = Checkpoint::open(dense.dir());
  ASSERT_TRUE(plain.is_ok());
  const Result<ModelWeights> plain_weights = bind_model_weights(plain.value(), dense.config());
  ASSERT_TRUE(plain_weights.is_ok());
  EXPECT_THAT(ExpertStore::create(plain.value(), dense.config(), plain_weights.value(), slots(9)).status().message(),
              HasSubstr("without routed experts"));
}

}  // namespace
}  // namespace tandem
