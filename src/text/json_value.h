// text/json_value.h: JSON as a chat prompt needs it: keys in source order, numbers as they will be written.
//
//   An integer keeps its digits, however many. A float becomes what Python's repr prints (1.50 -> 1.5, 1e3 -> 1000.0).
//   A key that occurs twice keeps its first place and its last value. A lone surrogate in a \u escape becomes U+FFFD.
//   Immutable once parsed: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace tandem {

enum class JsonKind { kNull, kBoolean, kNumber, kString, kArray, kObject };

class JsonValue {
 public:
  using Member = std::pair<std::string, JsonValue>;

  JsonValue() = default;
  static JsonValue boolean(bool value);
  static JsonValue number(std::string text);  // already in its final spelling
  static JsonValue string(std::string text);
  static JsonValue array();
  static JsonValue object();

  JsonKind kind() const { return kind_; }
  bool is_null() const { return kind_ == JsonKind::kNull; }
  bool is_string() const { return kind_ == JsonKind::kString; }
  bool is_boolean() const { return kind_ == JsonKind::kBoolean; }
  bool is_array() const { return kind_ == JsonKind::kArray; }
  bool is_object() const { return kind_ == JsonKind::kObject; }

  bool as_boolean() const { return boolean_; }
  const std::string& text() const { return text_; }  // of a string or a number
  const std::vector<JsonValue>& items() const { return items_; }
  const std::vector<Member>& members() const { return members_; }

  // The member of an object, or nothing; an explicit null counts as absent in `find_set`.
  const JsonValue* find(std::string_view key) const;
  const JsonValue* find_set(std::string_view key) const;

  std::vector<JsonValue>& mutable_items() { return items_; }
  std::vector<Member>& mutable_members() { return members_; }

 private:
  JsonKind kind_ = JsonKind::kNull;
  bool boolean_ = false;
  std::string text_;
  std::vector<JsonValue> items_;
  std::vector<Member> members_;
};

std::string_view json_kind_name(JsonKind kind);  // "null", "boolean", "number", "string", "array", "object"

inline constexpr int kMaxJsonDepth = 128;

// `origin` begins the message of a refusal. Refused: a syntax error, text that is not UTF-8, a float beyond double,
// nesting deeper than kMaxJsonDepth.
Result<JsonValue> parse_json(std::string_view text, std::string_view origin);

}  // namespace tandem
