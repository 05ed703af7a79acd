// Rank-BPE against a second implementation: a million random byte strings, long pieces, and texts that make a careless
// tokenizer quadratic.
#include <gtest/gtest.h>
#include <time.h>

#include <set>

#include "bpe_oracle.h"
#include "pretokenizer_oracle.h"
#include "support/effort.h"
#include "text/bpe.h"
#include "text_fixtures.h"

namespace tandem::test {
namespace {

// A vocabulary in which merges compete: the bytes in random places and random strings over a small alphabet, so that a
// token is often reached by other pairs than a merge list would hold, or by none.
std::vector<std::string> random_vocabulary(Random& random, std::string_view alphabet, int num_extra,
                                           unsigned max_length) {
  std::set<std::string> strings;
  for (const std::string& byte : single_bytes()) strings.insert(byte);
  for (int i = 0; i < num_extra; ++i) {
    std::string token;
    for (unsigned length = 2 + random() % (max_length - 1); length > 0; --length) {
      token.push_back(alphabet[random() % alphabet.size()]);
    }
    strings.insert(token);
  }
  std::vector<std::string> tokens(strings.begin(), strings.end());
  std::shuffle(tokens.begin(), tokens.end(), random);
  return tokens;
}

Tokenizer tokenizer_of(const std::vector<std::string>& tokens) {
  auto tokenizer = Tokenizer::from_memory(rank_file(tokens), "{}", static_cast<int64_t>(tokens.size()));
  EXPECT_TRUE(tokenizer.is_ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

const std::string kBytes = "ab \n'sA1\xE4\xBD\xA0\xFF\x80\xCC\x81";

// Field report 46: rank-BPE against its definition, broken UTF-8 included.
TEST(BpeProperty, MillionRandomStringsAgreeWithTheDefinition) {
  Random random(46);
  for (int vocabulary = 0; vocabulary < 10; ++vocabulary) {
    const auto tokens =
        random_vocabulary(random, vocabulary % 2 ? "ab" : kBytes, 40 * (1 + vocabulary), 2 + vocabulary % 5);
    const Tokenizer tokenizer = tokenizer_of(tokens);
    const BpeOracle oracle(tokens);
    const std::string_view alphabet = vocabulary % 2 ? "ab" : std::string_view(kBytes);
    std::vector<TokenId> ids;
    for (int round = 0; round < test::effort(100'000); ++round) {
      std::string text;
      for (unsigned length = random() % 16; length > 0; --length) text.push_back(alphabet[random() % alphabet.size()]);
      std::vector<TokenId> expected;
      for (const std::string_view piece : tokenizer.pre_tokenize(text)) {
        const auto piece_ids = oracle.naive(piece);
        expected.insert(expected.end(), piece_ids.begin(), piece_ids.end());
      }
      ids.clear();
      tokenizer.encode_text_to(text, ids);
      ASSERT_EQ(ids, expected) << ::testing::PrintToString(text) << " vocabulary " << vocabulary;
      ASSERT_EQ(tokenizer.decode(ids, false).value(), text);
    }
  }
}

TEST(BpeProperty, LongPiecesAgreeWithTheDefinition) {
  Random random(47);
  for (int vocabulary = 0; vocabulary < 6; ++vocabulary) {
    const std::string_view alphabet = vocabulary % 2 ? "ab" : "abcdef";
    const auto tokens = random_vocabulary(random, alphabet, 300, 8);
    const auto table = RankTable::parse(rank_file(tokens), "ranks");
    ASSERT_TRUE(table.is_ok());
    BpeEncoder encoder(table.value());
    const BpeOracle oracle(tokens);
    for (int round = 0; round < 300; ++round) {
      std::string piece;
      for (unsigned length = 30 + random() % 200; length > 0; --length)
        piece.push_back(alphabet[random() % alphabet.size()]);
      std::vector<TokenId> ids;
      encoder.encode(piece, ids);
      const auto expected = oracle.naive(piece);
      ASSERT_EQ(ids, expected);
      ASSERT_EQ(oracle.ordered_set(piece), expected) << "the second oracle";
    }
  }
}

// Field report 46: a word that rank-BPE and a merge list rebuilt from the ranks cut differently: `abc` has the lowest
// rank of the long tokens and neither `ab` nor `bc` is a token, so no merge reaches it except as a whole piece.
TEST(BpeProperty, RanksAreNotAMergeList) {
  auto tokens = single_bytes();
  tokens.push_back("abc");
  const Tokenizer tokenizer = tokenizer_of(tokens);
  EXPECT_EQ(tokenizer.encode_text("abc"), std::vector<TokenId>{TokenId(256)});
  EXPECT_EQ(tokenizer.encode_text("abcd"),
            (std::vector<TokenId>{TokenId('a'), TokenId('b'), TokenId('c'), TokenId('d')}));
}

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::string repeated(std::string_view unit, size_t size) {
  std::string out;
  while (out.size() < size) out += unit;
  return out;
}

// Field report 47: 1 MB of text of one shape: the ids of the guarded reference, in under a second of processor time.
class Pathological : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(Pathological, MegabyteIsFastAndRight) {
  auto tokens = single_bytes();
  for (const std::string_view unit : {"a", "A", " ", "\n", "你", "\u0301", "1"}) {
    std::string run(unit);
    for (int doubling = 0; doubling < 5; ++doubling) tokens.push_back(run += run);
  }
  tokens.push_back("你");
  tokens.push_back("好");
  const Tokenizer tokenizer = tokenizer_of(tokens);
  const std::string text = repeated(GetParam().second, 1'000'000);
  const double start = thread_seconds();
  const std::vector<TokenId> ids = tokenizer.encode_text(text);
  const double seconds = thread_seconds() - start;
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(seconds, 1.0);
#else
  EXPECT_LT(seconds, 30.0);
#endif
  RecordProperty("seconds", cat(seconds));

  ASSERT_EQ(tokenizer.decode(ids, false).value(), text);
  if (!is_valid_utf8(text)) return;  // PCRE2 matches UTF-8 only
  const Pattern pattern(pre_tokenizer_pattern());
  const BpeOracle oracle(tokens);
  std::vector<TokenId> expected;
  std::string last_piece;
  std::vector<TokenId> last_ids;
  for (const std::string& part : oracle_guard(text, 400000, 25000)) {
    for (const std::string& piece : oracle_pieces(pattern, part)) {
      if (piece != last_piece) last_ids = oracle.ordered_set(piece);
      last_piece = piece;
      expected.insert(expected.end(), last_ids.begin(), last_ids.end());
    }
  }
  ASSERT_EQ(ids.size(), expected.size());
  EXPECT_TRUE(ids == expected);
}

INSTANTIATE_TEST_SUITE_P(Megabyte, Pathological,
                         ::testing::Values(std::pair{"one_letter", "a"}, std::pair{"one_capital", "A"},
                                           std::pair{"spaces", " "}, std::pair{"newlines", "\n"},
                                           std::pair{"mixed_han", "你好世界再见々〇"}, std::pair{"letter_digit", "a1"},
                                           std::pair{"marks", "\u0301"}, std::pair{"capital_mark", "A\u0301"},
                                           std::pair{"mark_then_capitals", "\u0301AAAAAAAA"},
                                           std::pair{"contractions", "'s'S"}, std::pair{"sharp_s", "\u1e9e"},
                                           std::pair{"modifier_capitals", "\u02b0AB"}, std::pair{"han_latin", "你a"},
                                           std::pair{"space_newline", "   \n"}, std::pair{"control_names", "<|open|>"},
                                           std::pair{"half_names", "<|<|reserved_token_"},
                                           std::pair{"broken", "\xE4\xBD"}, std::pair{"punctuation", "!?"},
                                           std::pair{"digits", "7"}),
                         [](const auto& instance) { return std::string(instance.param.first); });

}  // namespace
}  // namespace tandem::test
