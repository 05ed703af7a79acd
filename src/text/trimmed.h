// text/trimmed.h: text without the white space around it. Stateless: any thread.
#pragma once

#include <string_view>

namespace tandem {

inline constexpr std::string_view kAsciiSpaces = " \t\r\n\f\v";

inline std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kAsciiSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kAsciiSpaces) + 1 - begin);
}

}  // namespace tandem
