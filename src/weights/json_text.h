// weights/json_text.h: two helpers over simdjson's On-Demand reader, for the .cpp files that parse checkpoint JSON.
// Keys and strings without escapes are views of the input, so that half a million names are not copied twice.
#pragma once

#include <simdjson.h>

#include <cstddef>
#include <span>
#include <string_view>

namespace tandem {

inline simdjson::padded_string_view padded_json(std::span<const std::byte> json, size_t padding) {
  return simdjson::padded_string_view(reinterpret_cast<const char*>(json.data()), json.size(), json.size() + padding);
}

// The characters from `first` to the closing quote, which stage 1 has found; `escaped` when a backslash is in between.
inline std::string_view raw_string(const char* first, bool& escaped) {
  const char* end = first;
  escaped = false;
  while (*end != '"') {
    if (*end == '\\') {
      escaped = true;
      ++end;
    }
    ++end;
  }
  return {first, static_cast<size_t>(end - first)};
}

inline simdjson::error_code read_key(simdjson::ondemand::field& field, std::string_view& key) {
  bool escaped = false;
  key = raw_string(field.key().raw(), escaped);
  return escaped ? field.unescaped_key().get(key) : simdjson::SUCCESS;
}

inline simdjson::error_code read_string(simdjson::ondemand::value value, std::string_view& text) {
  const std::string_view token = value.raw_json_token();
  if (token.empty() || token[0] != '"') return simdjson::INCORRECT_TYPE;
  bool escaped = false;
  text = raw_string(token.data() + 1, escaped);
  return escaped ? value.get_string().get(text) : simdjson::SUCCESS;
}

}  // namespace tandem
