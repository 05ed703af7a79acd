#include "text/stream_decoder.h"

#include <gtest/gtest.h>

#include "base/utf8.h"
#include "text_fixtures.h"

namespace tandem::test {
namespace {

TEST(StreamDecoder, Utf8StreamFixture) {
  const Tokenizer tokenizer = chat_tokenizer();
  const auto fixture = chat_fixture("utf8_stream_cases.json");
  ASSERT_FALSE(fixture["cases"].empty());
  for (const auto& entry : fixture["cases"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    StreamDecoder decoder(tokenizer);
    std::vector<std::string> emitted;
    for (const auto& hex : entry["token_bytes_hex"])
      emitted.push_back(decoder.append_bytes(from_hex(hex.get<std::string>())));
    emitted.push_back(decoder.flush());
    EXPECT_EQ(emitted, entry["emitted_after_each_token_and_at_end"].get<std::vector<std::string>>());
  }
}

TEST(StreamDecoder, ControlIdsAreNamedOrSkipped) {
  const Tokenizer tokenizer = chat_tokenizer();
  const TokenId open = *tokenizer.control_id("<|open|>");
  StreamDecoder shown(tokenizer, /*skip_special=*/false);
  StreamDecoder skipped(tokenizer);
  EXPECT_EQ(shown.append(open) + shown.append(TokenId('x')), "<|open|>x");
  EXPECT_EQ(skipped.append(open) + skipped.append(TokenId('x')), "x");
  EXPECT_EQ(shown.append(TokenId(1 << 30)), "");
}

// Any cut of any bytes: every frame is valid UTF-8, at most 3 bytes are held back, and the frames together are the
// replacement of the whole.
TEST(StreamDecoder, CutsDoNotMatter) {
  const Tokenizer tokenizer = chat_tokenizer();
  Random random(7);
  const std::string bytes_of_interest = "aZ\x80\xBF\xC2\xC3\xE0\xA0\xE4\xBD\xED\x9F\xEF\xF0\x90\xF4\x8F\xFF";
  for (int round = 0; round < 20000; ++round) {
    std::string bytes;
    std::string text;
    StreamDecoder decoder(tokenizer);
    for (int token = 0; token < 6; ++token) {
      std::string piece;
      for (unsigned i = random() % 4; i > 0; --i)
        piece.push_back(bytes_of_interest[random() % bytes_of_interest.size()]);
      bytes += piece;
      const std::string frame = decoder.append_bytes(piece);
      ASSERT_TRUE(is_valid_utf8(frame));
      text += frame;
      ASSERT_LE(replace_invalid_utf8(bytes).size(), text.size() + 3);
    }
    text += decoder.flush();
    ASSERT_EQ(text, replace_invalid_utf8(bytes));
    ASSERT_EQ(decoder.flush(), "");
  }
}

}  // namespace
}  // namespace tandem::test
