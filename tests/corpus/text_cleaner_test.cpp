#include "corpus/text_cleaner.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/cat.h"
#include "base/utf8.h"
#include "corpus/corpus_builder.h"
#include "corpus/stable_random.h"

namespace tandem::test {
namespace {

std::string clean(std::string_view raw, const TextCleanerOptions& options = {}) {
  TextCleanerCounts counts;
  return clean_text(raw, options, counts).value_or("refused");
}

TEST(TextCleaner, FollowsItsRules) {
  EXPECT_EQ(clean(""), "");
  EXPECT_EQ(clean(" \n\t\n"), "");
  EXPECT_EQ(clean("a\r\nb\rc\fd\ve\xC2\x85"
                  "f\xE2\x80\xA8g"),
            "a\nb\nc\nd\ne\nf\ng\n");
  EXPECT_EQ(clean("\n\n  a  \t\n\n\n\n\tb \n\n"), "  a\n\n\tb\n");
  EXPECT_EQ(clean("N\bNA\bAM\bME\bE _\bx a\b"), "NAME x\n");
  EXPECT_EQ(clean("\xC3\xA9\b\xC3\xA8 \b\b\b\bz"), "z\n");
  EXPECT_EQ(clean("a\x1b[1mb\x7f"
                  "c\xC2\x9F"
                  "d\0e"),
            "a[1mbcd\n");
  EXPECT_EQ(clean(std::string("d\0e", 3)), "de\n");
  EXPECT_EQ(clean("\xEF\xBB\xBFx\xC2\xA0y\xE3\x80\x80z\xE2\x80\x8Bw\xC2\xADv"), "x y zwv\n");
  EXPECT_EQ(clean("  a \t b\n\tc", {.collapse_spaces = true}), "a b\nc\n");
  EXPECT_EQ(clean("ok \xFF bad"), "refused");
  EXPECT_EQ(clean("ok\xFF\xC3 bad", {.invalid_utf8 = InvalidUtf8::kDropBytes}), "ok bad\n");
}

TEST(TextCleaner, IsIdempotentAndLeavesCleanText) {
  constexpr std::string_view kParts[] = {"a",    "B",        " ",    "\t",   "\n",           "\r",           "\b",
                                         "\x01", "\xC3\xA9", "\xFF", "\xC3", "\xE2\x80\xA8", "\xE2\x80\x8B", "\xC2\xA0",
                                         ".",    "\f",       "\x7f", "\n\n"};
  StableRandom random(4);
  for (int round = 0; round < 3000; ++round) {
    std::string raw;
    for (uint64_t n = random.below(40); n > 0; --n) raw += kParts[random.below(std::size(kParts))];
    const TextCleanerOptions options{InvalidUtf8::kDropBytes, round % 2 == 0};
    const std::string once = clean(raw, options);
    EXPECT_EQ(clean(once, options), once);
    EXPECT_TRUE(is_valid_utf8(once));
    EXPECT_EQ(once.find("\n\n\n"), std::string::npos);
    EXPECT_EQ(once.find(" \n"), std::string::npos);
    EXPECT_EQ(once.find_first_of("\r\b\f\x01\x7f"), std::string::npos);
    EXPECT_TRUE(once.empty() || (once.front() != '\n' && once.back() == '\n'));
  }
}

TEST(SeenTexts, AgreesWithASetOfTheTexts) {
  SeenTexts seen;
  std::set<std::string> exact;
  StableRandom random(8);
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (uint64_t n = random.below(5); n > 0; --n) text += static_cast<char>('a' + random.below(6));
    EXPECT_EQ(seen.insert(text), exact.insert(text).second);
  }
  EXPECT_EQ(seen.size(), exact.size());
}

std::string sentence(uint64_t number) {
  return cat("This is paragraph ", number, " of a document, with words enough to count as prose.");
}

TEST(CorpusBuilder, DropsAndCountsEveryKind) {
  CorpusBuilder builder({.cleaner = {}, .min_document_bytes = 60});
  builder.begin_source({"first", "1.0", "public domain", "archive"});
  EXPECT_EQ(builder.add_document(sentence(1) + "\r\n\r\n* * *\n\n" + sentence(2)),
            sentence(1) + "\n\n* * *\n\n" + sentence(2) + "\n");
  EXPECT_EQ(builder.add_document(sentence(1) + "\n\n* * *\n\n" + sentence(2) + "   \n"), std::nullopt);  // duplicate
  EXPECT_EQ(builder.add_document("too short"), std::nullopt);
  EXPECT_EQ(builder.add_document(sentence(3) + "\xFF"), std::nullopt);
  builder.begin_source({"second", "2.0", "MIT", "registry"});
  EXPECT_EQ(builder.add_document(std::string(200, '=')), std::nullopt);
  // Paragraph 2 came before, in the other source; paragraph 4 comes twice here; the ruler is too short to count.
  EXPECT_EQ(builder.add_document(sentence(4) + "\n\n" + sentence(2) + "\n\n* * *\n\n" + sentence(4)),
            sentence(4) + "\n\n* * *\n");
  EXPECT_EQ(builder.add_document(sentence(1) + "\n\n" + sentence(2)), std::nullopt);  // nothing new remains
  ASSERT_EQ(builder.reports().size(), 2u);
  const SourceCounts& first = builder.reports()[0].counts;
  EXPECT_EQ(first.documents_in, 4);
  EXPECT_EQ(first.documents_out, 1);
  EXPECT_EQ(first.dropped_duplicate, 1);
  EXPECT_EQ(first.dropped_too_short, 1);
  EXPECT_EQ(first.dropped_not_utf8, 1);
  const SourceCounts& second = builder.reports()[1].counts;
  EXPECT_EQ(second.documents_in, 3);
  EXPECT_EQ(second.documents_out, 1);
  EXPECT_EQ(second.dropped_not_prose, 1);
  EXPECT_EQ(second.dropped_too_short, 1);
  EXPECT_EQ(second.duplicate_paragraphs, 4);
  EXPECT_EQ(second.bytes_out, static_cast<int64_t>((sentence(4) + "\n\n* * *\n").size()));
  for (const auto& report : builder.reports()) {
    const SourceCounts& c = report.counts;
    EXPECT_EQ(c.documents_in,
              c.documents_out + c.dropped_not_utf8 + c.dropped_too_short + c.dropped_not_prose + c.dropped_duplicate);
  }

  const auto manifest = nlohmann::json::parse(builder.manifest_json());
  EXPECT_EQ(manifest["sources"][1]["package"], "second");
  EXPECT_EQ(manifest["sources"][1]["version"], "2.0");
  EXPECT_EQ(manifest["sources"][1]["license"], "MIT");
  EXPECT_EQ(manifest["sources"][0]["bytes_in"], first.bytes_in);
  EXPECT_EQ(manifest["totals"]["documents_in"], 7);
  EXPECT_EQ(manifest["totals"]["duplicate_paragraphs"], 4);
  EXPECT_EQ(manifest["rules"]["min_document_bytes"], 60);
}

// After the builder, no paragraph long enough to count occurs twice, whatever went in.
TEST(CorpusBuilder, NoLongParagraphComesOutTwice) {
  CorpusBuilder builder({.cleaner = {}, .min_document_bytes = 1});
  builder.begin_source({"random", "1", "none", ""});
  StableRandom random(2);
  std::set<std::string> out;
  std::set<uint64_t> in;
  for (int d = 0; d < 300; ++d) {
    std::string raw;
    for (uint64_t n = 1 + random.below(5); n > 0; --n) {
      const uint64_t number = random.below(400);
      in.insert(number);
      raw += sentence(number) + "\n\n";
    }
    const auto text = builder.add_document(raw);
    for (size_t at = 0; text && at < text->size();) {
      const size_t end = std::min(text->find("\n\n", at), text->size() - 1);
      EXPECT_TRUE(out.insert(text->substr(at, end - at)).second);
      at = end + 2;
    }
  }
  EXPECT_EQ(out.size(), in.size());  // and every paragraph came out once
}

}  // namespace
}  // namespace tandem::test
