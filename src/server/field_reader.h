// server/field_reader.h: optional, typed fields of a JSON object; the first refusal is kept and names the field.
//
//   null counts as absent. An integer may be written 5 or 5.0. One reader serves one thread; the object outlives it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "text/json_value.h"

namespace tandem {

// The value of a JSON number that is an integer of 64 bits.
std::optional<int64_t> json_integer(const JsonValue& value);
std::optional<double> json_number(const JsonValue& value);

class FieldReader {
 public:
  explicit FieldReader(const JsonValue& object, std::string path = "") : object_(object), path_(std::move(path)) {}

  std::optional<int64_t> integer(std::string_view key, int64_t low, int64_t high);
  // Any integer of 64 bits, signed or not.
  std::optional<uint64_t> bits64(std::string_view key);
  std::optional<double> number(std::string_view key, double low, double high);
  std::optional<bool> boolean(std::string_view key);
  bool flag(std::string_view key, bool otherwise) { return boolean(key).value_or(otherwise); }
  std::optional<std::string> string(std::string_view key);
  const JsonValue* object(std::string_view key);
  const JsonValue* array(std::string_view key);
  // A list of at most `most` non-empty strings, or one.
  std::vector<std::string> strings(std::string_view key, size_t most);
  std::vector<TokenId> token_ids(std::string_view key, int64_t vocab_size);

  // Keeps the first problem.
  void fail(Status status);
  void refuse(std::string_view key, std::string_view expected);
  const Status& status() const { return status_; }

 private:
  const JsonValue& object_;
  std::string path_;  // with its final '.', or empty
  Status status_;
};

// Ids of `list`, each of [0, vocab_size).
Result<std::vector<TokenId>> read_token_ids(const JsonValue& list, std::string_view path, int64_t vocab_size);

}  // namespace tandem
