#include "server/field_reader.h"

#include <charconv>
#include <cmath>

#include "text/field.h"

namespace tandem {
namespace {

template <class Number>
std::optional<Number> parsed(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string_view without_zero_fraction(std::string_view text) {
  return text.ends_with(".0") ? text.substr(0, text.size() - 2) : text;
}

}  // namespace

std::optional<int64_t> json_integer(const JsonValue& value) {
  if (value.kind() != JsonKind::kNumber) return std::nullopt;
  return parsed<int64_t>(without_zero_fraction(value.text()));
}

std::optional<double> json_number(const JsonValue& value) {
  if (value.kind() != JsonKind::kNumber) return std::nullopt;
  const auto number = parsed<double>(value.text());
  return number && std::isfinite(*number) ? number : std::nullopt;
}

Result<std::vector<TokenId>> read_token_ids(const JsonValue& list, std::string_view path, int64_t vocab_size) {
  std::vector<TokenId> ids;
  ids.reserve(list.items().size());
  for (size_t i = 0; i < list.items().size(); ++i) {
    const auto id = json_integer(list.items()[i]);
    if (!id || *id < 0 || *id >= vocab_size) {
      return bad_field(cat(path, "[", i, "]"), cat("a token id of 0 to ", vocab_size - 1), &list.items()[i]);
    }
    ids.emplace_back(static_cast<int32_t>(*id));
  }
  return ids;
}

void FieldReader::fail(Status status) {
  if (status_.is_ok()) status_ = std::move(status);
}

void FieldReader::refuse(std::string_view key, std::string_view expected) {
  fail(bad_field(cat(path_, key), expected, object_.find(key)));
}

std::optional<int64_t> FieldReader::integer(std::string_view key, int64_t low, int64_t high) {
  const JsonValue* found = object_.find_set(key);
  if (found == nullptr) return std::nullopt;
  const auto value = json_integer(*found);
  if (value && *value >= low && *value <= high) return value;
  refuse(key, high == INT64_MAX ? cat("an integer of at least ", low) : cat("an integer of ", low, " to ", high));
  return std::nullopt;
}

std::optional<uint64_t> FieldReader::bits64(std::string_view key) {
  const JsonValue* found = object_.find_set(key);
  if (found == nullptr) return std::nullopt;
  if (const auto value = json_integer(*found)) return static_cast<uint64_t>(*value);
  if (found->kind() == JsonKind::kNumber) {
    if (const auto value = parsed<uint64_t>(found->text())) return value;
  }
  refuse(key, "an integer of 64 bits");
  return std::nullopt;
}

std::optional<double> FieldReader::number(std::string_view key, double low, double high) {
  const JsonValue* found = object_.find_set(key);
  if (found == nullptr) return std::nullopt;
  const auto value = json_number(*found);
  if (value && *value >= low && *value <= high) return value;
  refuse(key, cat("a number in [", low, ", ", high, "]"));
  return std::nullopt;
}

std::optional<bool> FieldReader::boolean(std::string_view key) {
  const JsonValue* found = object_.find_set(key);
  if (found == nullptr) return std::nullopt;
  if (found->is_boolean()) return found->as_boolean();
  refuse(key, "true or false");
  return std::nullopt;
}

std::optional<std::string> FieldReader::string(std::string_view key) {
  const JsonValue* found = object_.find_set(key);
  if (found == nullptr) return std::nullopt;
  if (found->is_string()) return found->text();
  refuse(key, "a string");
  return std::nullopt;
}

const JsonValue* FieldReader::object(std::string_view key) {
  const JsonValue* found = object_.find_set(key);
  if (found == nullptr || found->is_object()) return found;
  refuse(key, "an object");
  return nullptr;
}

const JsonValue* FieldReader::array(std::string_view key) {
  const JsonValue* found = object_.find_set(key);
  if (found == nullptr || found->is_array()) return found;
  refuse(key, "a list");
  return nullptr;
}

std::vector<std::string> FieldReader::strings(std::string_view key, size_t most) {
  std::vector<std::string> out;
  const JsonValue* found = object_.find_set(key);
  if (found == nullptr) return out;
  const std::string expected = cat("a non-empty string, or a list of up to ", most, " of them");
  const bool is_list = found->is_array();
  const size_t size = is_list ? found->items().size() : 1;
  if (size > most) {
    fail(Status::invalid(cat(path_, key, ": expected ", expected, ", found ", size)));
    return out;
  }
  for (size_t i = 0; i < size; ++i) {
    const JsonValue& item = is_list ? found->items()[i] : *found;
    if (item.is_string() && !item.text().empty()) {
      out.push_back(item.text());
    } else {
      fail(bad_field(is_list ? cat(path_, key, "[", i, "]") : cat(path_, key), expected, &item));
    }
  }
  return out;
}

std::vector<TokenId> FieldReader::token_ids(std::string_view key, int64_t vocab_size) {
  const JsonValue* list = array(key);
  if (list == nullptr) return {};
  auto ids = read_token_ids(*list, cat(path_, key), vocab_size);
  if (ids.is_ok()) return std::move(ids).value();
  fail(ids.status());
  return {};
}

}  // namespace tandem
