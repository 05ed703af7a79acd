// tests/text/text_fixtures.h: what the text tests share: JSON fixtures and small tokenizers built in memory.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "support/golden.h"
#include "text/segment.h"
#include "text/tokenizer.h"

namespace tandem {

// gtest prints these on failure.
inline void PrintTo(const Segment& segment, std::ostream* out) {
  *out << (segment.is_control ? "control " : "text ") << '"' << segment.text << '"';
}
inline void PrintTo(TokenId id, std::ostream* out) { *out << id.value; }

}  // namespace tandem

namespace tandem::test {

using nlohmann::ordered_json;

inline ordered_json chat_fixture(const std::string& name) {
  return ordered_json::parse(read_text(data_path("fixtures/chat/" + name)));
}

inline std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) bits = bits << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) out.push_back(i + k <= bytes.size() ? kDigits[bits >> (18 - 6 * k) & 63] : '=');
  }
  return out;
}

inline std::string rank_file(const std::vector<std::string>& tokens) {
  std::string out;
  for (size_t i = 0; i < tokens.size(); ++i) out += cat(base64(tokens[i]), " ", i, "\n");
  return out;
}

inline std::vector<std::string> single_bytes() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  return tokens;
}

// A tokenizer_config.json that names ids.
inline std::string control_config(const std::vector<std::pair<int64_t, std::string>>& names) {
  ordered_json decoder = ordered_json::object();
  for (const auto& [id, name] : names) decoder[std::to_string(id)] = {{"content", name}, {"special", true}};
  return ordered_json{{"added_tokens_decoder", decoder}}.dump();
}

// The names of one list of special_tokens.json, moved from K3's place to `first_control_id`.
inline std::vector<std::pair<int64_t, std::string>> fixture_names(const std::string& list, int64_t first_control_id) {
  const ordered_json fixture = chat_fixture("special_tokens.json");
  const int64_t offset = first_control_id - fixture["n_ranks"].get<int64_t>();
  std::vector<std::pair<int64_t, std::string>> names;
  for (const auto& entry : fixture[list]) names.emplace_back(entry["id"].get<int64_t>() + offset, entry["text"]);
  return names;
}

// `tokens` as ranks and 256 control ids behind them, named as `list` of special_tokens.json names them.
inline Tokenizer named_tokenizer(const std::vector<std::string>& tokens, const std::string& list = "kimi_k3") {
  const auto num_ranks = static_cast<int64_t>(tokens.size());
  auto tokenizer =
      Tokenizer::from_memory(rank_file(tokens), control_config(fixture_names(list, num_ranks)), num_ranks + 256);
  if (!tokenizer.is_ok()) ADD_FAILURE() << tokenizer.status().message();
  return std::move(tokenizer).value();
}

// Single bytes and words of the chat format, so that segment borders matter: `=".` and `"` are both tokens.
inline Tokenizer chat_tokenizer(const std::string& list = "kimi_k3") {
  std::vector<std::string> tokens = single_bytes();
  for (const char* token :
       {"=\"",     "=\".", "us",  "er",    "user", "ro", "le", "role", " role", "me",       "ss", "age",
        "message", "th",   "ink", "think", "<|",   "|>", "op", "en",   "open",  "<|open|>", "s<", "\"<"}) {
    tokens.emplace_back(token);
  }
  return named_tokenizer(tokens, list);
}

inline std::vector<TokenId> token_ids(const ordered_json& list) {
  std::vector<TokenId> ids;
  for (const auto& id : list) ids.emplace_back(id.get<int32_t>());
  return ids;
}

inline std::vector<Segment> segments_of(const ordered_json& list) {
  std::vector<Segment> segments;
  for (const auto& pair : list) segments.push_back({pair[0].get<std::string>(), pair[1].get<bool>()});
  return segments;
}

// std::mt19937 whose numbers are 32 bits wide in type too.
class Random {
 public:
  using result_type = uint32_t;
  explicit Random(uint32_t seed) : engine_(seed) {}
  static constexpr uint32_t min() { return 0; }
  static constexpr uint32_t max() { return UINT32_MAX; }
  uint32_t operator()() { return static_cast<uint32_t>(engine_()); }

 private:
  std::mt19937 engine_;
};

inline std::string from_hex(std::string_view hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    out.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return out;
}

}  // namespace tandem::test
