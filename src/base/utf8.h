// base/utf8.h: decoding of UTF-8 that may be broken, as the Unicode standard's table 3-7 defines it.
//
//   Overlong forms, surrogates and code points above U+10FFFF are invalid. Stateless: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

struct Utf8Step {
  uint32_t code_point = 0;  // meaningful when valid
  uint32_t size = 0;        // valid: the sequence's bytes; else the maximal subpart that one U+FFFD replaces, >= 1
  bool valid = false;
  bool truncated = false;  // invalid only because the text ends: more bytes could make it valid
};

// The sequence at the start of `text`, which is not empty.
Utf8Step decode_utf8(std::string_view text);

bool is_valid_utf8(std::string_view text);

// Every maximal invalid subpart becomes one U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

void append_utf8(std::string& out, uint32_t code_point);  // code_point: a Unicode scalar value

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

}  // namespace tandem
