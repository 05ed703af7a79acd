#include "corpus/packed_sequences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <set>

#include "base/cat.h"
#include "corpus/corpus_support.h"
#include "corpus/index_permutation.h"
#include "corpus/token_shard_writer.h"
#include "corpus/training_order.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kVocab = 5000;
constexpr int32_t kPad = 4999;

// Two shards of documents in which every token of the row is its own number, so that every place can be recognised.
class PackedSequencesTest : public ::testing::Test {
 protected:
  void write(const std::vector<int>& sizes, LossMask mask = LossMask::kNone) {
    std::vector<std::string> paths;
    int32_t next = 0;
    const size_t half = (sizes.size() + 1) / 2;
    for (size_t part = 0; part < 2; ++part) {
      const size_t first = part == 0 ? 0 : half;
      const size_t last = part == 0 ? half : sizes.size();
      if (first == last) continue;
      paths.push_back(folder_.path(cat("part", part)));
      auto writer = TokenShardWriter::create(paths.back(), kVocab, mask);
      ASSERT_TRUE(writer.is_ok());
      for (size_t d = first; d < last; ++d) {
        std::vector<TokenId> tokens;
        std::vector<uint8_t> loss;
        for (int i = 0; i < sizes[d]; ++i) {
          if (mask == LossMask::kPerToken) loss.push_back(next % 3 != 0);
          document_of_.push_back(static_cast<int>(d));
          tokens.emplace_back(next++);
        }
        ASSERT_TRUE(writer.value().add_document(tokens, loss).is_ok());
      }
      ASSERT_TRUE(writer.value().finish().is_ok());
    }
    auto dataset = TokenDataset::open(paths);
    ASSERT_TRUE(dataset.is_ok()) << dataset.status().message();
    dataset_.emplace(std::move(dataset).value());
  }

  // What holds for every packed sequence; the tokens seen are counted.
  void expect_laws(const PackedSequence& s, int64_t length, bool masked, std::vector<int>& seen) const {
    ASSERT_EQ(static_cast<int64_t>(s.tokens.size()), length);
    ASSERT_EQ(static_cast<int64_t>(s.targets.size()), length);
    ASSERT_EQ(s.cu_seqlens.front(), 0);
    ASSERT_EQ(s.cu_seqlens.back(), length);
    for (size_t p = 0; p + 1 < s.cu_seqlens.size(); ++p) {
      ASSERT_LT(s.cu_seqlens[p], s.cu_seqlens[p + 1]);
      for (int32_t i = s.cu_seqlens[p]; i < s.cu_seqlens[p + 1]; ++i) {
        if (i >= s.num_valid) {
          EXPECT_EQ(s.tokens[i], kPad);
          EXPECT_EQ(s.targets[i], kNoTarget);
          EXPECT_GE(s.cu_seqlens[p], s.num_valid) << "padding shares a piece with a document";
          continue;
        }
        const int32_t token = s.tokens[i];
        ++seen[token];
        EXPECT_EQ(document_of_[token], document_of_[s.tokens[s.cu_seqlens[p]]]);
        EXPECT_EQ(token, s.tokens[s.cu_seqlens[p]] + i - s.cu_seqlens[p]);
        const size_t next = static_cast<size_t>(token) + 1;
        const bool has_target =
            next < document_of_.size() && document_of_[next] == document_of_[token] && (!masked || next % 3 != 0);
        EXPECT_EQ(s.targets[i], has_target ? static_cast<int32_t>(next) : kNoTarget);
      }
    }
  }

  TempFolder folder_;
  std::optional<TokenDataset> dataset_;
  std::vector<int> document_of_;  // by token
};

TEST_F(PackedSequencesTest, StreamUsesEveryTokenOnceWhateverTheLength) {
  for (const bool masked : {false, true}) {
    document_of_.clear();
    write({5, 1, 17, 3, 64, 2, 1, 1, 30}, masked ? LossMask::kPerToken : LossMask::kNone);
    for (const int64_t length : {2, 3, 7, 16, 64, 124, 125, 200}) {
      auto packed = PackedSequences::create(*dataset_, length, PackMode::kStream, kPad);
      ASSERT_TRUE(packed.is_ok());
      std::vector<int> seen(document_of_.size());
      PackedSequence sequence;
      for (uint64_t i = 0; i < packed.value().size(); ++i) {
        packed.value().read(i, sequence);
        expect_laws(sequence, length, masked, seen);
        if (i + 1 < packed.value().size()) {
          EXPECT_EQ(sequence.num_valid, length);
        }
      }
      EXPECT_EQ(seen, std::vector<int>(document_of_.size(), 1));
    }
  }
}

TEST_F(PackedSequencesTest, WholeDocumentsAreNeverCut) {
  StableRandom random(11);
  std::vector<int> sizes;
  for (int i = 0; i < 200; ++i) sizes.push_back(static_cast<int>(1 + random.below(36)));
  write(sizes, LossMask::kPerToken);
  constexpr int64_t kLength = 32;
  auto packed = PackedSequences::create(*dataset_, kLength, PackMode::kWholeDocuments, kPad);
  ASSERT_TRUE(packed.is_ok());
  std::vector<int> seen(document_of_.size());
  PackedSequence sequence;
  for (uint64_t i = 0; i < packed.value().size(); ++i) {
    packed.value().read(i, sequence);
    expect_laws(sequence, kLength, true, seen);
  }
  uint64_t num_long = 0;
  size_t token = 0;
  for (const int size : sizes) {
    const bool fits = size <= kLength;
    num_long += !fits;
    for (int i = 0; i < size; ++i) EXPECT_EQ(seen[token++], fits ? 1 : 0);
  }
  EXPECT_GT(num_long, 0u);
  EXPECT_EQ(packed.value().num_left_out(), num_long);
  EXPECT_GT(packed.value().fill(), 0.9);
}

TEST_F(PackedSequencesTest, RefusesWhatCannotBePacked) {
  write({10, 12});
  EXPECT_THAT(PackedSequences::create(*dataset_, 1, PackMode::kStream, kPad).status().message(),
              HasSubstr("sequence length"));
  EXPECT_THAT(PackedSequences::create(*dataset_, 8, PackMode::kStream, kVocab).status().message(), HasSubstr("pad id"));
  EXPECT_THAT(PackedSequences::create(*dataset_, 8, PackMode::kWholeDocuments, kPad).status().message(),
              HasSubstr("all 2 are longer"));
  EXPECT_FALSE(TokenDataset::open({}).is_ok());
  auto other = TokenShardWriter::create(folder_.path("other"), kVocab + 1, LossMask::kNone);
  ASSERT_TRUE(other.value().add_document(std::vector<TokenId>{TokenId(1)}).is_ok());
  ASSERT_TRUE(other.value().finish().is_ok());
  const std::vector<std::string> paths = {folder_.path("part0"), folder_.path("other")};
  EXPECT_THAT(TokenDataset::open(paths).status().message(), HasSubstr("other: expected the vocabulary size of"));
}

TEST(IndexPermutation, IsABijectionWithItsInverse) {
  for (const uint64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 100, 255, 256, 257, 1000, 4097}) {
    for (const uint64_t key : {0, 1, 12345}) {
      const IndexPermutation permutation(n, key);
      std::vector<int> seen(n);
      for (uint64_t i = 0; i < n; ++i) {
        const uint64_t value = permutation[i];
        ASSERT_LT(value, n);
        ++seen[value];
        ASSERT_EQ(permutation.position_of(value), i);
      }
      EXPECT_EQ(seen, std::vector<int>(n, 1)) << n;
    }
  }
  const IndexPermutation huge(uint64_t{1} << 62, 9);
  for (uint64_t i = 0; i < 1000; ++i) EXPECT_EQ(huge.position_of(huge[i << 50]), i << 50);
}

// A shuffle, not a rotation or the identity: places are uncorrelated with values. For a random permutation of n the
// rank correlation has a standard deviation of 1 / sqrt(n - 1); five of them bound it.
TEST(IndexPermutation, LooksShuffled) {
  constexpr uint64_t kN = 10007;
  for (uint64_t key = 0; key < 8; ++key) {
    const IndexPermutation permutation(kN, key);
    double sum = 0;
    uint64_t num_neighbours = 0;
    for (uint64_t i = 0; i < kN; ++i) {
      const double mean = (kN - 1) / 2.0;
      sum += (static_cast<double>(i) - mean) * (static_cast<double>(permutation[i]) - mean);
      if (i > 0 && permutation[i] == permutation[i - 1] + 1) ++num_neighbours;
    }
    const double variance = (static_cast<double>(kN) * kN - 1) / 12;
    EXPECT_LT(std::abs(sum / (variance * kN)), 5 / std::sqrt(kN - 1.0));
    EXPECT_LT(num_neighbours, 10u);  // one is expected
  }
}

TEST(TrainingOrder, EveryStepIsAFunctionOfItsNumber) {
  const CurriculumStage stages[] = {{1000, 16}, {640, 32}, {500, 64}};
  const uint64_t counts[] = {37, 9, 3};
  auto created = TrainingOrder::create(5, 64, stages, counts);
  ASSERT_TRUE(created.is_ok()) << created.status().message();
  const TrainingOrder& order = created.value();
  EXPECT_EQ(order.num_steps(), 16 + 10 + 8);
  uint64_t next = 0;
  size_t stage = 0;
  std::vector<std::vector<uint64_t>> drawn(3);
  for (int64_t s = 0; s < order.num_steps(); ++s) {
    const TrainingOrder::Step step = order.step(s);
    if (step.stage != stage) next = 0;
    stage = step.stage;
    EXPECT_EQ(step.first, next);
    EXPECT_EQ(step.num_sequences * step.length, 64);
    EXPECT_EQ(step.length, stages[stage].length);
    next += static_cast<uint64_t>(step.num_sequences);
    for (int64_t i = 0; i < step.num_sequences; ++i) {
      drawn[stage].push_back(order.place(stage, step.first + static_cast<uint64_t>(i)).sequence);
    }
  }
  // Every whole epoch holds every sequence once, and epochs differ in order.
  for (size_t k = 0; k < 3; ++k) {
    const size_t n = counts[k];
    for (size_t begin = 0; begin + n <= drawn[k].size(); begin += n) {
      const std::set<uint64_t> epoch(drawn[k].begin() + static_cast<std::ptrdiff_t>(begin),
                                     drawn[k].begin() + static_cast<std::ptrdiff_t>(begin + n));
      EXPECT_EQ(epoch.size(), n);
      EXPECT_LT(*epoch.rbegin(), n);
    }
  }
  EXPECT_EQ(order.place(0, 36).epoch, 0u);
  EXPECT_EQ(order.place(0, 37).epoch, 1u);
  auto other = TrainingOrder::create(6, 64, stages, counts);
  int num_equal = 0;
  for (uint64_t i = 0; i < 37; ++i) num_equal += order.place(0, i).sequence == other.value().place(0, i).sequence;
  EXPECT_LT(num_equal, 10);
}

TEST(TrainingOrder, RefusalsNameTheStage) {
  const uint64_t counts[] = {4, 4};
  const auto refusal = [&](std::vector<CurriculumStage> stages, int64_t batch) {
    return TrainingOrder::create(1, batch, stages, std::span(counts).first(stages.size())).status().message();
  };
  EXPECT_THAT(refusal({}, 64), HasSubstr("expected a stage"));
  EXPECT_THAT(refusal({{100, 16}, {100, 48}}, 64), HasSubstr("stage 1: expected a length that divides the batch"));
  EXPECT_THAT(refusal({{0, 16}}, 64), HasSubstr("stage 0: expected a number of tokens"));
  EXPECT_THAT(refusal({{10, 16}}, 0), HasSubstr("batch tokens"));
}

}  // namespace
}  // namespace tandem::test
