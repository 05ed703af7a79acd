#include "text/xtml_reply_header.h"

#include <algorithm>

#include "text/trimmed.h"

namespace tandem {
namespace {

XtmlTag tag_of(std::string_view name) {
  constexpr std::pair<std::string_view, XtmlTag> kTags[] = {
      {"message", XtmlTag::kMessage}, {"think", XtmlTag::kThink}, {"response", XtmlTag::kResponse},
      {"tools", XtmlTag::kTools},     {"call", XtmlTag::kCall},   {"argument", XtmlTag::kArgument},
      {"json", XtmlTag::kJson}};
  for (const auto& [text, tag] : kTags) {
    if (text == name) return tag;
  }
  return XtmlTag::kUnknown;
}

std::string unescaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    if (rest.starts_with("&quot;")) {
      out.push_back('"');
      i += 6;
    } else if (rest.starts_with("&amp;")) {
      out.push_back('&');
      i += 5;
    } else {
      out.push_back(text[i++]);
    }
  }
  return out;
}

}  // namespace

std::optional<std::string> XtmlHeader::attribute(std::string_view key) const {
  for (const auto& [name, value] : attributes) {
    if (name == key) return value;
  }
  return std::nullopt;
}

XtmlHeader parse_xtml_header(std::string_view text) {
  text = trimmed(text);
  const size_t name_end = std::min(text.find_first_of(kAsciiSpaces), text.size());
  XtmlHeader header;
  header.tag = tag_of(text.substr(0, name_end));
  header.is_bare = header.tag != XtmlTag::kUnknown && name_end == text.size();
  text = trimmed(text.substr(name_end));
  while (!text.empty()) {
    const size_t word_end = std::min(text.find_first_of(kAsciiSpaces), text.size());
    const size_t key_end = text.substr(0, word_end).find('=');
    size_t next = word_end;  // a word that is no attribute is passed over
    if (key_end != std::string_view::npos && text.substr(key_end + 1).starts_with('"')) {
      const size_t value_end = text.find('"', key_end + 2);
      if (value_end == std::string_view::npos) break;
      const std::string_view value = text.substr(key_end + 2, value_end - key_end - 2);
      header.attributes.emplace_back(text.substr(0, key_end), unescaped(value));
      next = value_end + 1;
    }
    next = std::min(text.find_first_not_of(kAsciiSpaces, next), text.size());
    text = text.substr(next);
  }
  return header;
}

}  // namespace tandem
