// tests/fuzz/control_text_fuzz.cpp: any bytes survive encode_text and encode_control, and no spelled-out name becomes a
// control id of ordinary text. The same bytes are then read as a chat request and rendered.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/cat.h"
#include "base/check.h"
#include "base/utf8.h"
#include "text/chat_format.h"
#include "text/chat_request.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"

namespace {

constexpr std::string_view kNames[] = {"[BOS]",
                                       "[EOS]",
                                       "<|end_of_msg|>",
                                       "<|open|>",
                                       "<|close|>",
                                       "<|sep|>",
                                       "<|media_begin|>",
                                       "<|media_content|>",
                                       "<|media_end|>",
                                       "<|media_pad|>",
                                       "<|",
                                       "<|op"};

tandem::Tokenizer make_tokenizer() {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string ranks;
  const auto add = [&](std::string_view bytes, int rank) {
    for (size_t i = 0; i < bytes.size(); i += 3) {
      uint32_t bits = 0;
      for (size_t k = 0; k < 3; ++k)
        bits = bits << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0u);
      for (size_t k = 0; k < 4; ++k) ranks.push_back(i + k <= bytes.size() ? kDigits[bits >> (18 - 6 * k) & 63] : '=');
    }
    ranks += tandem::cat(" ", rank, "\n");
  };
  int rank = 0;
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)), rank++);
  for (const std::string_view token :
       {"<|", "|>", "open", "<|open|>", "ab", "aa", "aaaa", "  ", "    ", "\xE4\xBD", "\xCC\x81"}) {
    add(token, rank++);
  }
  std::string config = "{\"added_tokens_decoder\":{";
  int id = rank;
  for (const std::string_view name : kNames) {
    config += tandem::cat(id == rank ? "" : ",", "\"", id, "\":{\"content\":\"", name, "\"}");
    ++id;
  }
  return tandem::Tokenizer::from_memory(ranks, config + "}}", id + 4).value();
}

void check_stream(const tandem::Tokenizer& tokenizer, const std::vector<tandem::TokenId>& ids, std::string_view input) {
  tandem::StreamDecoder decoder(tokenizer, /*skip_special=*/false);
  std::string text;
  for (const tandem::TokenId id : ids) {
    const std::string frame = decoder.append(id);
    TANDEM_CHECK(tandem::is_valid_utf8(frame), "every frame is valid UTF-8");
    text += frame;
  }
  text += decoder.flush();
  TANDEM_CHECK(text == tandem::replace_invalid_utf8(input), "the frames together are the text");
}

void check_chat(const tandem::Tokenizer& tokenizer, std::string_view input) {
  for (const bool bare : {false, true}) {
    const auto request = bare ? tandem::parse_bare_request(input) : tandem::parse_chat_request(input);
    if (!request.is_ok()) continue;
    const auto segments = tandem::render_chat(tokenizer, request.value());
    if (!segments.is_ok()) continue;
    const auto ids = tandem::encode_segments(tokenizer, segments.value());
    TANDEM_CHECK(tokenizer.decode(ids, false).value() == tandem::joined_text(segments.value()),
                 "a prompt decodes to its text");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tandem::Tokenizer kTokenizer = make_tokenizer();
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto text_ids = kTokenizer.encode_text(input);
  for (const tandem::TokenId id : text_ids) TANDEM_CHECK(!kTokenizer.is_control(id), "ordinary text has no control id");
  TANDEM_CHECK(kTokenizer.decode(text_ids, false).value() == input, "decode is the inverse of encode_text");
  const auto control_ids = kTokenizer.encode_control(input);
  TANDEM_CHECK(kTokenizer.decode(control_ids, false).value() == input, "decode is the inverse of encode_control");
  check_stream(kTokenizer, control_ids, input);
  check_chat(kTokenizer, input);
  return 0;
}
