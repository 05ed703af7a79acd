// tests/fuzz/rank_file_fuzz.cpp: any rank file and tokenizer_config.json is loaded or refused, and what loads works.
//
//   Input: [flags] [config bytes …] 0x00 [rank file …]. With flag bit 0 the 256 single bytes are put before the rank
//   file's lines, so that mutation reaches past the check for them.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/tokenizer.h"

namespace {

std::string single_byte_lines() {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t byte = 0; byte < 256; ++byte) {
    out += {kDigits[byte >> 2], kDigits[(byte & 3) << 4], '=', '=', ' '};
    out += std::to_string(byte) + "\n";
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string kSingleBytes = single_byte_lines();
  if (size < 2) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t border = std::min(input.find('\0'), input.size());
  const std::string_view config = input.substr(0, border);
  const std::string_view lines = input.substr(std::min(border + 1, input.size()));
  const std::string ranks = (data[0] & 1) != 0 ? kSingleBytes + std::string(lines) : std::string(lines);
  const int64_t vocab_size = 256 + (data[0] >> 1);

  const auto tokenizer = tandem::Tokenizer::from_memory(ranks, config, vocab_size, "fuzz/");
  if (!tokenizer.is_ok()) {
    TANDEM_CHECK(tokenizer.status().message().find("fuzz/") == 0, "a refusal names the file");
    return 0;
  }
  const tandem::Tokenizer& loaded = tokenizer.value();
  TANDEM_CHECK(loaded.vocab_size() == vocab_size, "the vocabulary has the size asked for");
  for (int32_t id = 0; id < vocab_size; ++id) {
    const std::string_view bytes = loaded.token_bytes(tandem::TokenId(id));
    TANDEM_CHECK(!bytes.empty(), "a token has bytes");
    if (loaded.is_control(tandem::TokenId(id))) {
      TANDEM_CHECK(loaded.control_id(bytes) == tandem::TokenId(id), "a control name leads back to its id");
    }
  }
  const auto ids = loaded.encode_text(input);
  TANDEM_CHECK(loaded.decode(ids, false).value() == input, "decode is the inverse of encode");
  return 0;
}
