// base/cat.h: concatenate strings, numbers and characters into one std::string, for messages.
#pragma once

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

namespace tandem {
namespace detail {

inline void append_piece(std::string& out, std::string_view text) { out.append(text); }
inline void append_piece(std::string& out, char character) { out.push_back(character); }
inline void append_piece(std::string& out, bool value) { out.append(value ? "true" : "false"); }

template <class Number>
  requires(std::integral<Number> || std::floating_point<Number>)
void append_piece(std::string& out, Number value) {
  char buffer[64];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  (void)error;  // 64 characters hold every integer and every shortest floating-point form
  out.append(buffer, end);
}

}  // namespace detail

template <class... Pieces>
std::string cat(const Pieces&... pieces) {
  std::string out;
  (detail::append_piece(out, pieces), ...);
  return out;
}

}  // namespace tandem
