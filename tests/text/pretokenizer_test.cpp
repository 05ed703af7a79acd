#include "text/pretokenizer.h"

#include <gtest/gtest.h>

#include "pretokenizer_oracle.h"
#include "support/effort.h"
#include "text_fixtures.h"

namespace tandem::test {
namespace {

std::vector<std::string> pieces_of(const PreTokenizer& pre_tokenizer, std::string_view text) {
  std::vector<std::string> pieces;
  pre_tokenizer.for_each_piece(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

std::vector<std::string> guarded(const PreTokenizer& pre_tokenizer, std::string_view text, int64_t slice, int64_t run) {
  std::vector<std::string> parts;
  pre_tokenizer.split_guarded(text, slice, run, [&](std::string_view part) { parts.emplace_back(part); });
  return parts;
}

TEST(PreTokenizer, Fixture) {
  const PreTokenizer pre_tokenizer;
  const Pattern pattern(pre_tokenizer_pattern());
  const auto fixture = chat_fixture("pretokenizer_cases.json");
  ASSERT_FALSE(fixture["cases"].empty());
  for (const auto& entry : fixture["cases"]) {
    const std::string text = entry["text"];
    SCOPED_TRACE(text);
    const auto expected = entry["pieces"].get<std::vector<std::string>>();
    EXPECT_EQ(pieces_of(pre_tokenizer, text), expected);
    EXPECT_EQ(oracle_pieces(pattern, text), expected) << "the oracle itself";
  }
}

TEST(PreTokenizer, SplitGuardFixture) {
  const PreTokenizer pre_tokenizer;
  const ordered_json fixture = chat_fixture("split_guard.json");
  for (const auto& entry : fixture["cases"]) {
    const std::string text = entry["text"];
    SCOPED_TRACE(text);
    const auto expected = entry["pieces"].get<std::vector<std::string>>();
    EXPECT_EQ(guarded(pre_tokenizer, text, kGuardSliceLength, entry["limit"]), expected);
    EXPECT_EQ(oracle_guard(text, kGuardSliceLength, entry["limit"]), expected) << "the oracle itself";
  }
  std::vector<int64_t> lengths;
  for (const auto& piece : pieces_of(pre_tokenizer, std::string(60000, 'a'))) lengths.push_back(std::ssize(piece));
  EXPECT_EQ(lengths, fixture["real_limit_case"]["piece_lengths"].get<std::vector<int64_t>>());
}

// The class table against PCRE2's own Unicode data, at every code point that PCRE2's version (14.0) assigns.
TEST(PreTokenizer, ClassesAgreeWithPcre2) {
  const UnicodeClasses classes;
  const Pattern unassigned(R"(\p{Cn})");
  const std::pair<uint8_t, std::unique_ptr<Pattern>> patterns[] = {
      {kClassHan, std::make_unique<Pattern>(kHanPattern)},
      {kClassUpper, std::make_unique<Pattern>(kUpperPattern)},
      {kClassLower, std::make_unique<Pattern>(kLowerPattern)},
      {kClassLetter, std::make_unique<Pattern>(R"(\p{L})")},
      {kClassNumber, std::make_unique<Pattern>(R"(\p{N})")},
      {kClassSpace, std::make_unique<Pattern>("[" + kSpaceSet + "]")},
      {kClassNewline, std::make_unique<Pattern>(R"([\r\n])")},
  };
  int num_assigned = 0;
  int num_different = 0;
  for (uint32_t c = 0; c < UnicodeClasses::kNumCodePoints; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    if (unassigned.match(text, 0) != std::string_view::npos) continue;
    ++num_assigned;
    uint8_t expected = 0;
    for (const auto& [bit, pattern] : patterns) {
      if (pattern->match(text, 0) != std::string_view::npos) expected = static_cast<uint8_t>(expected | bit);
    }
    if (classes[c] != expected && ++num_different <= 10) {
      ADD_FAILURE() << "U+" << std::hex << c << ": table " << int{classes[c]} << ", PCRE2 " << int{expected};
    }
  }
  EXPECT_EQ(num_different, 0);
  EXPECT_GT(num_assigned, 280000);
}

class RandomText {
 public:
  explicit RandomText(uint32_t seed) : random_(seed), unassigned_(R"(\p{Cn})") {}

  std::string next(unsigned max_length) {
    std::string text;
    const unsigned length = random_() % (max_length + 1);
    // Few kinds in one string: runs of a class, and borders between the same classes over and over.
    const unsigned kinds[3] = {random_() % 16, random_() % 16, random_() % 16};
    for (unsigned i = 0; i < length; ++i) append_utf8(text, code_point(kinds[random_() % 3]));
    return text;
  }

 private:
  uint32_t pick(std::initializer_list<uint32_t> set) { return set.begin()[random_() % set.size()]; }

  uint32_t code_point(unsigned kind) {
    switch (kind) {
      case 0: return 'a' + random_() % 26;
      case 1: return 'A' + random_() % 26;
      case 2: return '0' + random_() % 10;
      case 3: return ' ';
      case 4: return pick({'\n', '\r', '\n', ' '});
      case 5: return pick({'\t', 0x0B, 0x85, 0xA0, 0x2003, 0x2028, 0x3000, 0x180E, 0x1C});
      case 6: return pick({'\'', 's', 'S', 't', 'r', 'E', 'e', 'v', 'l', 'L', 'm', 'D', 0x17F, 0x212A});
      case 7: return pick({'.', '=', '"', '<', '|', '_', '-', '/', 0x2019, 0x1F600});
      case 8: return pick({0x4F60, 0x597D, 0x3005, 0x3007, 0x4EBB, 0x20000, 0x2E80, 0x3021, 0xF900});
      case 9: return pick({0x301, 0x302A, 0x64E, 0x16FF0, 0x20DD, 0x903});        // marks
      case 10: return pick({0x2B0, 0xAA, 0x5D0, 0x627, 0xAC00, 0x3042, 0x30FC});  // Lm, Lo
      case 11: return pick({0x1C5, 0x1F88, 0xC9, 0x416, 0x10400});                // Lt, Lu
      case 12: return pick({0xE9, 0x436, 0xDF, 0x1E9E, 0x10428});                 // Ll
      case 13: return pick({0x661, 0x2167, 0xBD, 0x1D7CE});                       // N
      default: return assigned();
    }
  }

  uint32_t assigned() {
    while (true) {
      const uint32_t c = random_() % (random_() % 2 ? 0x3000 : 0x20000);
      if (c >= 0xD800 && c < 0xE000) continue;
      std::string text;
      append_utf8(text, c);
      if (unassigned_.match(text, 0) == std::string_view::npos) return c;
    }
  }

  Random random_;
  Pattern unassigned_;
};

TEST(PreTokenizer, RandomTextsAgreeWithPcre2) {
  const PreTokenizer pre_tokenizer;
  const Pattern pattern(pre_tokenizer_pattern());
  RandomText random(20260801);
  for (int round = 0; round < test::effort(1'000'000); ++round) {
    const std::string text = random.next(12);
    const auto expected = oracle_pieces(pattern, text);
    size_t at = 0;
    for (const std::string& piece : expected) {
      const size_t size = pre_tokenizer.next_piece(std::string_view(text).substr(at));
      ASSERT_EQ(text.substr(at, size), piece) << "in \"" << text << "\" at byte " << at;
      at += size;
    }
  }
}

TEST(PreTokenizer, RandomGuardsAgreeWithTheDefinition) {
  const PreTokenizer pre_tokenizer;
  Random random(5);
  for (int round = 0; round < 50000; ++round) {
    std::string text;
    for (unsigned i = random() % 40; i > 0; --i) append_utf8(text, std::u32string(U"aa é你 \t\u3000")[random() % 8]);
    const auto slice = static_cast<int64_t>(random() % 12 + 1);
    const auto run = static_cast<int64_t>(random() % 6 + 1);
    ASSERT_EQ(guarded(pre_tokenizer, text, slice, run), oracle_guard(text, slice, run))
        << text << " " << slice << " " << run;
  }
}

TEST(PreTokenizer, BrokenBytesAreSymbolsOfNoClass) {
  const PreTokenizer pre_tokenizer;
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(pieces_of(pre_tokenizer,
                      "ab\xFF"
                      "cd"),
            (Pieces{"ab",
                    "\xFF"
                    "cd"}));
  EXPECT_EQ(pieces_of(pre_tokenizer, "\xE4\xBD"), (Pieces{"\xE4\xBD"}));
  EXPECT_EQ(pieces_of(pre_tokenizer, "1\x80 "), (Pieces{"1", "\x80", " "}));
}

}  // namespace
}  // namespace tandem::test
