// A trunk that is read layer by layer: the logits of the resident model, bit for bit, or a refusal that names the
// layer.
#include "stream/trunk_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "kernels/kernel_table.h"
#include "stream/moved_file.h"
#include "stream/streamed_model.h"
#include "support/effort.h"

namespace tandem {
namespace {

using test::RandomModel;
using test::StreamedModel;
using testing::AnyOf;
using testing::HasSubstr;

class TrunkStreamTest : public testing::Test {
 protected:
  TrunkStreamTest() : kernels_(make_kernel_table(detect_cpu_features(), std::nullopt).value()) {}

  template <class AnyModel>
  Result<std::vector<float>> run(const AnyModel& model) {
    const std::vector<std::vector<TokenId>> tokens = {test::random_tokens(17, model.config().vocab_size, 1),
                                                      test::random_tokens(9, model.config().vocab_size, 2)};
    std::vector<SequenceCache> caches;
    for (size_t s = 0; s < tokens.size(); ++s) caches.push_back(model.new_cache());
    return test::run_together(exec_, model.model(), caches, tokens, 6, 4);
  }
  static ExpertStore::Options slots(int64_t count) {
    ExpertStore::Options options;
    options.num_slots = count;
    return options;
  }
  static bool has_experts(const ModelConfig& config) {
    for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
      if (config.is_moe(l)) return true;
    }
    return false;
  }

  KernelTable kernels_;
  ThreadPool pool_{2};
  Arena arena_;
  ExecContext exec_{pool_, arena_, kernels_};
};

TEST_F(TrunkStreamTest, GivesTheLogitsOfTheResidentModelWithAndWithoutStreamedExperts) {
  for (int64_t seed = 1; seed <= test::effort(16); ++seed) {
    test::SmallShape shape = test::random_shape(static_cast<uint64_t>(seed));
    shape.tied = seed % 4 == 0;
    const RandomModel resident(shape, static_cast<uint64_t>(seed));
    const Result<std::vector<float>> expected = run(resident);
    ASSERT_TRUE(expected.is_ok()) << expected.status().message();
    for (const bool experts : {false, true}) {
      if (experts && !has_experts(resident.config())) continue;
      StreamedModel streamed(resident.dir(), slots(experts ? resident.config().num_experts_per_token : 0),
                             DirectReaderOptions{});
      const Result<std::vector<float>> found = run(streamed);
      ASSERT_TRUE(found.is_ok()) << found.status().message();
      EXPECT_EQ(found.value(), expected.value()) << seed;
      EXPECT_GT(streamed.trunk().reader().stats().bytes, 0u);
    }
  }
}

TEST_F(TrunkStreamTest, MatricesAtAddressesTheirTypeDoesNotAllowStayInMemory) {
  const RandomModel resident({}, 3);
  const test::TempFolder folder;
  test::write_moved(resident, folder.path(), 1);
  StreamedModel streamed(folder.path(), slots(4), DirectReaderOptions{});
  EXPECT_EQ(run(streamed).value(), run(resident).value());
}

// One attempt after another fails: a refusal by name or the right logits, and the right ones afterwards.
TEST_F(TrunkStreamTest, AFailingReadIsRefusedByNameAndHarmsNothingLater) {
  const RandomModel resident({}, 4);
  const std::vector<float> expected = run(resident).value();
  for (int64_t at = 0; at < test::effort(40); at += 2) {
    std::optional<int64_t> broken = at;
    DirectReaderOptions options;
    options.faults = [&](const ReadAttempt& attempt) -> ReadFault {
      if (attempt.number == broken) return {ReadFault::Kind::kError, 0, EIO};
      return {};
    };
    StreamedModel streamed(resident.dir(), slots(0), options);
    const Status status = run(streamed).status();
    broken.reset();
    EXPECT_EQ(status.code(), StatusCode::kIo) << at;
    EXPECT_THAT(status.message(), AnyOf(HasSubstr("layer "), HasSubstr("the head")));
    EXPECT_THAT(status.message(), HasSubstr(std::strerror(EIO)));
    EXPECT_THAT(status.message(), HasSubstr(streamed.checkpoint().shard_path(0)));
    const Result<std::vector<float>> again = run(streamed);
    ASSERT_TRUE(again.is_ok()) << again.status().message();
    EXPECT_EQ(again.value(), expected) << at;
  }
}

TEST_F(TrunkStreamTest, ACorruptedBlockIsNoticedWhenTheLayerIsReadAgain) {
  const RandomModel resident({}, 5);
  bool corrupt = false;
  DirectReaderOptions options;
  options.faults = [&](const ReadAttempt& attempt) -> ReadFault {
    if (corrupt) return {ReadFault::Kind::kCorrupt, attempt.num_bytes / 2, 0};
    return {};
  };
  StreamedModel streamed(resident.dir(), slots(0), options);
  const std::vector<float> expected = run(resident).value();
  EXPECT_EQ(run(streamed).value(), expected);
  corrupt = true;
  EXPECT_THAT(run(streamed).status().message(), HasSubstr("its bytes differ from those that were read before"));
  corrupt = false;
  EXPECT_EQ(run(streamed).value(), expected);
}

TEST_F(TrunkStreamTest, AReadWithoutAnAnswerIsRefusedAndItsBufferNotUsedAgain) {
  const RandomModel resident({}, 6);
  bool stalling = true;
  DirectReaderOptions options;
  options.stall_seconds = 0.02;
  options.faults = [&](const ReadAttempt&) -> ReadFault {
    if (stalling) return {ReadFault::Kind::kStall, 0, 0};
    return {};
  };
  StreamedModel streamed(resident.dir(), slots(0), options);
  EXPECT_THAT(run(streamed).status().message(), HasSubstr("layer 0: "));
  stalling = false;
  EXPECT_THAT(run(streamed).status().message(), HasSubstr("no answer for 0.02 seconds"));
}

}  // namespace
}  // namespace tandem
