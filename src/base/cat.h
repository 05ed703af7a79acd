// base/cat.h: concatenate strings, numbers and characters into one std::string, for messages.
#pragma once

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

namespace tandem {
namespace detail {

inline void append_piece(std::string& out, std::string_view text) { out.append(text); }

// One template for all arithmetic types: an overload for bool would win over std::string_view for a string literal.
template <class Number>
requires(std::integral<Number> || std::floating_point<Number>) void append_piece(std::string& out, Number value) {
  if constexpr (std::same_as<Number, char>) {
    out.push_back(value);
  } else if constexpr (std::same_as<Number, bool>) {
    out.append(value ? "true" : "false");
  } else {
    char buffer[64];  // holds every integer and every shortest floating-point form
    out.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
  }
}

}  // namespace detail

template <class... Pieces>
std::string cat(const Pieces&... pieces) {
  std::string out;
  (detail::append_piece(out, pieces), ...);
  return out;
}

}  // namespace tandem
