#include "corpus/bpe_trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/cat.h"
#include "corpus/corpus_support.h"
#include "corpus/stable_random.h"
#include "text/tokenizer.h"
#include "weights/toy_tokenizer.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;

// The trainer's definition in the plainest form: every step looks at every piece again.
class NaiveTrainer {
 public:
  NaiveTrainer(const std::vector<std::string>& texts, const BpeTrainerOptions& options) : options_(options) {
    const PreTokenizer pre_tokenizer;
    std::map<std::string, int64_t> counts;
    for (const std::string& text : texts) {
      pre_tokenizer.for_each_piece(text, [&](std::string_view piece) { ++counts[std::string(piece)]; });
    }
    for (int byte = 0; byte < 256; ++byte) tokens_.emplace_back(1, static_cast<char>(byte));
    for (const auto& [piece, count] : counts) {
      words_.push_back({{}, count});
      for (const char c : piece) words_.back().symbols.push_back(static_cast<uint8_t>(c));
    }
  }

  std::vector<std::string> train() {
    while (true) {
      while (const auto known = lowest_known_pair()) merge(known->second, known->first);
      if (static_cast<int64_t>(tokens_.size()) == options_.num_ranks) return tokens_;
      const auto best = most_frequent_pair();
      if (!best) return tokens_;
      tokens_.push_back(bytes(*best));
      merge(*best, static_cast<int>(tokens_.size()) - 1);
    }
  }

 private:
  using Pair = std::pair<int, int>;
  struct Word {
    std::vector<int> symbols;
    int64_t count;
  };

  std::string bytes(Pair pair) const {
    return tokens_[static_cast<size_t>(pair.first)] + tokens_[static_cast<size_t>(pair.second)];
  }
  std::map<Pair, int64_t> pair_counts() const {
    std::map<Pair, int64_t> counts;
    for (const Word& word : words_) {
      for (size_t i = 0; i + 1 < word.symbols.size(); ++i) {
        const Pair pair = {word.symbols[i], word.symbols[i + 1]};
        if (bytes(pair).size() <= options_.max_token_bytes) counts[pair] += word.count;
      }
    }
    return counts;
  }
  std::optional<std::pair<int, Pair>> lowest_known_pair() const {
    std::optional<std::pair<int, Pair>> lowest;
    for (const auto& [pair, count] : pair_counts()) {
      const auto found = std::ranges::find(tokens_, bytes(pair));
      if (found == tokens_.end()) continue;
      const std::pair<int, Pair> candidate = {static_cast<int>(found - tokens_.begin()), pair};
      if (!lowest || candidate < *lowest) lowest = candidate;
    }
    return lowest;
  }
  std::optional<Pair> most_frequent_pair() const {
    std::optional<Pair> best;
    int64_t best_count = 0;
    for (const auto& [pair, count] : pair_counts()) {  // ascending, so the first of equals stays
      if (count >= options_.min_pair_count && count > best_count) {
        best = pair;
        best_count = count;
      }
    }
    return best;
  }
  void merge(Pair pair, int id) {
    for (Word& word : words_) {
      std::vector<int> out;
      for (size_t i = 0; i < word.symbols.size(); ++i) {
        if (i + 1 < word.symbols.size() && word.symbols[i] == pair.first && word.symbols[i + 1] == pair.second) {
          out.push_back(id);
          ++i;
        } else {
          out.push_back(word.symbols[i]);
        }
      }
      word.symbols = std::move(out);
    }
  }

  BpeTrainerOptions options_;
  std::vector<std::string> tokens_;
  std::vector<Word> words_;
};

std::vector<std::string> train(const std::vector<std::string>& texts, const BpeTrainerOptions& options) {
  BpeTrainer trainer;
  for (const std::string& text : texts) trainer.add_text(text);
  auto ranks = trainer.train(options);
  EXPECT_TRUE(ranks.is_ok()) << ranks.status().message();
  return ranks.is_ok() ? std::move(ranks).value() : std::vector<std::string>{};
}

std::vector<std::string> english() {
  return {
      "The cat sat on the mat, and the other cat sat on the other mat. What is 17 plus 25? It is 42.",
      "aaaa aaaaa aaaaaa aaaaaaa banana bananas ananas nanana\n\n\nnanananana  HTTPServer getURLFast",
      "naïve café über straße 東京都 東京 ☃☃☃ ===== ===== =========", "the theme of these themes is there, then them"};
}

// Few letters, so that pairs repeat, overlap and reach the same bytes by many ways.
std::vector<std::string> random_texts(uint64_t seed, uint64_t num_letters) {
  StableRandom random(seed);
  std::vector<std::string> texts(5);
  for (std::string& text : texts) {
    for (int word = 0; word < 40; ++word) {
      const uint64_t size = 1 + random.below(14);
      for (uint64_t i = 0; i < size; ++i) text += static_cast<char>('a' + random.below(num_letters));
      text += ' ';
    }
  }
  return texts;
}

TEST(BpeTrainer, AgreesWithTheNaiveTrainer) {
  EXPECT_EQ(train(english(), {.num_ranks = 290}), NaiveTrainer(english(), {.num_ranks = 290}).train());
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const auto texts = random_texts(seed, 1 + seed % 4);
    for (const size_t max_bytes : {size_t{32}, size_t{5}}) {
      BpeTrainerOptions options{.num_ranks = 400, .min_pair_count = 1, .max_token_bytes = max_bytes};
      const auto expected = NaiveTrainer(texts, options).train();
      options.num_ranks = static_cast<int64_t>(expected.size());
      EXPECT_EQ(train(texts, options), expected) << "seed " << seed;
    }
  }
}

TEST(BpeTrainer, OrderOfTheTextsDoesNotMatterAndAWeightIsARepetition) {
  auto texts = random_texts(3, 5);
  const BpeTrainerOptions options{.num_ranks = 330};
  const auto ranks = train(texts, options);
  std::ranges::reverse(texts);
  EXPECT_EQ(train(texts, options), ranks);
  BpeTrainer weighted;
  weighted.add_text(texts[0], 3);
  weighted.add_text(texts[1]);
  EXPECT_EQ(weighted.train({.num_ranks = 300}).value(),
            train({texts[0], texts[1], texts[0], texts[0]}, {.num_ranks = 300}));
}

TEST(BpeTrainer, RanksAreTheBytesThenDistinctTokensMadeOfLowerOnes) {
  const auto ranks = train(random_texts(9, 3), {.num_ranks = 350});
  ASSERT_EQ(ranks.size(), 350u);
  std::map<std::string, size_t> rank_of;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank < 256) {
      EXPECT_EQ(ranks[rank], std::string(1, static_cast<char>(rank)));
    } else {
      bool is_made = false;
      for (size_t cut = 1; cut < ranks[rank].size(); ++cut) {
        is_made |= rank_of.contains(ranks[rank].substr(0, cut)) && rank_of.contains(ranks[rank].substr(cut));
      }
      EXPECT_TRUE(is_made) << rank;
    }
    EXPECT_TRUE(rank_of.emplace(ranks[rank], rank).second) << "twice: " << ranks[rank];
  }
}

TEST(BpeTrainer, TokenizerLoadsFromTheFilesAndRoundTrips) {
  const TempFolder folder;
  const auto ranks = train(english(), {.num_ranks = 290});
  auto files = make_tokenizer_files(ranks);
  ASSERT_TRUE(files.is_ok());
  EXPECT_EQ(files.value().vocab_size, 290 + 256);
  ASSERT_TRUE(write_tokenizer_files(folder.path(), files.value()).is_ok());
  auto loaded = Tokenizer::load(folder.path(), 290 + 256);
  ASSERT_TRUE(loaded.is_ok()) << loaded.status().message();
  const Tokenizer& tokenizer = loaded.value();
  EXPECT_EQ(tokenizer.num_ranks(), 290);
  for (const ControlName& name : k3_control_names()) {
    EXPECT_EQ(tokenizer.control_id(name.text), TokenId(static_cast<int32_t>(290 + name.offset))) << name.text;
  }
  size_t num_bytes = 0;
  size_t num_ids = 0;
  for (const std::string& text : english()) {
    const auto ids = tokenizer.encode_text(text);
    EXPECT_EQ(tokenizer.decode(ids, false).value(), text);
    num_bytes += text.size();
    num_ids += ids.size();
  }
  EXPECT_LT(num_ids, num_bytes * 8 / 10);
  std::string all_bytes;
  for (int byte = 255; byte >= 0; --byte) all_bytes += static_cast<char>(byte);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode_text(all_bytes), false).value(), all_bytes);
}

TEST(BpeTrainer, RefusesWhatItCannotDo) {
  BpeTrainer trainer;
  trainer.add_text("abab");
  EXPECT_THAT(trainer.train({.num_ranks = 255}).status().message(), HasSubstr("ranks: expected 256"));
  EXPECT_THAT(trainer.train({.num_ranks = 300}).status().message(),
              HasSubstr("expected pairs for 300 ranks, found enough for 257"));
  EXPECT_THAT(trainer.train({.num_ranks = 256, .min_pair_count = 0}).status().message(), HasSubstr("pair count"));
  EXPECT_FALSE(make_tokenizer_files({"a"}).is_ok());
  auto files = make_tokenizer_files(train({"abab"}, {.num_ranks = 256}));
  ASSERT_TRUE(files.is_ok());
  EXPECT_FALSE(write_tokenizer_files("/nonexistent/folder", files.value()).is_ok());
}

// The word list of a piece is not walked for every merge: a long piece of many merges stays fast.
TEST(BpeTrainer, LongPiecesAndManyMerges) {
  StableRandom random(1);
  std::string text;
  for (int i = 0; i < 20000; ++i) text += static_cast<char>('a' + random.below(20));
  const auto ranks = train({text}, {.num_ranks = 700});
  EXPECT_EQ(ranks.size(), 700u);
}

TEST(BpeTrainer, SingleDigitsKeepsNumbersApart) {
  BpeTrainer trainer;
  for (int i = 0; i < 50; ++i) trainer.add_text("in 1984 and 1985 the year is 1984");
  const auto num_with_digits = [&](bool single_digits) {
    const auto ranks = trainer.train({.num_ranks = 268, .single_digits = single_digits}).value();
    return std::ranges::count_if(ranks, [](const std::string& rank) {
      return std::ranges::count_if(rank, [](char c) { return c >= '0' && c <= '9'; }) > 1;
    });
  };
  EXPECT_GT(num_with_digits(false), 0);
  EXPECT_EQ(num_with_digits(true), 0);
}

}  // namespace
}  // namespace tandem::test
