// text/field.h: refusals of a JSON request that name the field, what was expected and what was found.
#pragma once

#include <string>
#include <string_view>

#include "base/cat.h"
#include "base/result.h"
#include "text/json_value.h"

namespace tandem {

// What a value is, short enough for a message.
inline std::string describe_json(const JsonValue* value) {
  if (value == nullptr) return "nothing";
  if (value->is_string()) return cat("\"", value->text().substr(0, 64), "\"");
  if (value->kind() == JsonKind::kNumber) return value->text().substr(0, 64);
  if (value->is_boolean()) return value->as_boolean() ? "true" : "false";
  return std::string(json_kind_name(value->kind()));
}

inline Status bad_field(std::string_view path, std::string_view expected, const JsonValue* found) {
  return Status::invalid(cat(path, ": expected ", expected, ", found ", describe_json(found)));
}

// Reads an optional boolean of `object`; null counts as absent and leaves `value` alone.
inline Status read_boolean(const JsonValue& object, std::string_view key, std::string_view path, bool& value) {
  const JsonValue* found = object.find_set(key);
  if (found == nullptr) return Status::ok();
  if (!found->is_boolean()) return bad_field(cat(path, key), "true or false", found);
  value = found->as_boolean();
  return Status::ok();
}

// The same for a string.
inline Status read_string(const JsonValue& object, std::string_view key, std::string_view path, std::string& value) {
  const JsonValue* found = object.find_set(key);
  if (found == nullptr) return Status::ok();
  if (!found->is_string()) return bad_field(cat(path, key), "a string", found);
  value = found->text();
  return Status::ok();
}

}  // namespace tandem
