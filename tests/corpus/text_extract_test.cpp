#include "corpus/text_extract.h"

#include <gtest/gtest.h>

namespace tandem::test {
namespace {

std::string html_text(std::string_view html) { return extract_documents(html, TextFormat::kHtml, 1).at(0); }

TEST(TextExtract, HtmlGivesTheTextOfItsBlocks) {
  EXPECT_EQ(html_text("<html><head><title>no</title></head><body><h1>One</h1><p>Two  <b>bold</b>\nwords.</p></body>"),
            "One\n\nTwo bold words.");
  EXPECT_EQ(html_text("<p>a</p><pre>code <b>x</b></pre><p>b</p>"), "a\n\nb");
  EXPECT_EQ(html_text("<p>a</p><script>if (a<b) {}</script><table><tr><td>1<table></table></td></tr></table><p>b</p>"),
            "a\n\nb");
  EXPECT_EQ(html_text("<div class=\"navheader\">up</div><p>a<!-- <p>no</p> --></p>"), "a");
}

TEST(TextExtract, HtmlResolvesEntities) {
  EXPECT_EQ(html_text("<p>a &amp; b &lt;c&gt; &#233; &#xE9; &mdash; &nosuch; &"), "a & b <c> é é - &");
  EXPECT_EQ(html_text("&#0;&#xD800;&#99999999;x"), "x") << "what is no character is left out";
}

TEST(TextExtract, BrokenHtmlEnds) {
  EXPECT_EQ(html_text("a<b"), "a");
  EXPECT_EQ(html_text("a<!-- b"), "a");
  EXPECT_EQ(html_text("<pre>a"), "");
  EXPECT_EQ(html_text(""), "");
}

TEST(TextExtract, DictdGivesWordAndDefinition) {
  constexpr std::string_view kFile =
      "Ship \\Ship\\ (sh[i^]p), n. [OE. ship; see {Skiff}.\n   More.]\n   1. Any large seagoing vessel of {wood}. "
      "--Shak.\n"
      "   [1913 Webster]\n\n   2. A second sense.\n\n"
      "Shipboard \\Ship\"board`\\, n.\n   A ship's side; hence, by extension, a ship.\n\n"
      "Shy \\Shy\\, n.\n   Short.\n";
  const auto documents = extract_documents(kFile, TextFormat::kDictd, 2);
  ASSERT_EQ(documents.size(), 1u) << "the third is too short to say anything";
  EXPECT_EQ(documents[0],
            "Ship: 1. Any large seagoing vessel of wood. --Shak. 2. A second sense.\n\n"
            "Shipboard: A ship's side; hence, by extension, a ship.\n\n");
  EXPECT_EQ(extract_documents(kFile, TextFormat::kDictd, 1).size(), 2u);
}

TEST(TextExtract, WordnetGivesSentences) {
  constexpr std::string_view kFile =
      "  1 a notice\n"
      "00039297 04 n 01 contact 2 005 @ 0003 n 0000 | close interaction; \"they kept in touch\"\n"
      "00001740 29 v 01 draw_breath 0 000 | take in air\n"
      "00003131 00 a 01 absent(p) 0 001 & 01 a 0000 | not being there\n"
      "broken line\n";
  const auto documents = extract_documents(kFile, TextFormat::kWordnet, 10);
  ASSERT_EQ(documents.size(), 1u);
  EXPECT_EQ(
      documents[0],
      "Contact is close interaction. For example: \"they kept in touch\".\n\nTo draw breath is to take in air.\n\n"
      "Absent means not being there.\n\n");
}

TEST(TextExtract, ProseKeepsSentencesAndJoinsTheirLines) {
  const std::string sentence =
      "This is a sentence that was broken over two lines by\n   somebody who wrote it long ago.";
  const std::string joined = "This is a sentence that was broken over two lines by somebody who wrote it long ago.\n";
  EXPECT_EQ(paragraphs_of_prose(sentence), joined);
  EXPECT_EQ(paragraphs_of_prose(sentence +
                                "\n\n| 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 | 10 | 11 | 12 | 13 | 14 | 15 |\n\nMenu\n"),
            joined);
  EXPECT_EQ(paragraphs_of_prose("A heading of many words that goes on and on but is not a sentence at all, really"),
            "");
  EXPECT_EQ(paragraphs_of_prose(""), "");
}

TEST(TextExtract, FormatsHaveNames) {
  EXPECT_EQ(text_format_of("html"), TextFormat::kHtml);
  EXPECT_EQ(text_format_of("pdf"), std::nullopt);
}

}  // namespace
}  // namespace tandem::test
