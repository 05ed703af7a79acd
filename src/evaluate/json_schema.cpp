#include "evaluate/json_schema.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/cat.h"
#include "text/json_format.h"

namespace tandem {
namespace {

double number_of(const JsonValue& value) {
  double number = 0;
  const std::string& text = value.text();
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// Integers by their digits, which a double may not hold.
bool same_number(const std::string& a, const std::string& b) {
  const auto is_integer = [](const std::string& text) { return text.find_first_of(".eE") == std::string::npos; };
  if (a == b) return true;
  if (is_integer(a) && is_integer(b)) return false;
  return number_of(JsonValue::number(a)) == number_of(JsonValue::number(b));
}

bool has_type(const JsonValue& value, std::string_view type) {
  if (type == "integer") return value.kind() == JsonKind::kNumber && std::floor(number_of(value)) == number_of(value);
  return json_kind_name(value.kind()) == type;
}

std::string expected(std::string_view path, std::string_view what, const JsonValue& value) {
  return cat(path.empty() ? "the value" : path, ": expected ", what, ", found ", format_json_spaced(value));
}

std::string type_fault(const JsonValue& value, const JsonValue& type, const std::string& path) {
  if (type.is_string()) return has_type(value, type.text()) ? "" : expected(path, type.text(), value);
  if (!type.is_array()) return "the schema's type is neither a string nor a list";
  std::string names;
  for (const JsonValue& item : type.items()) {
    if (has_type(value, item.text())) return "";
    names += cat(names.empty() ? "" : " or ", item.text());
  }
  return expected(path, names, value);
}

std::string fault_at(const JsonValue& value, const JsonValue& schema, const std::string& path, int depth);

std::string object_fault(const JsonValue& value, const JsonValue& schema, const std::string& path, int depth) {
  if (const JsonValue* required = schema.find("required")) {
    for (const JsonValue& key : required->items()) {
      if (value.find(key.text()) == nullptr) return expected(path, cat("a member \"", key.text(), "\""), value);
    }
  }
  const JsonValue* properties = schema.find("properties");
  const JsonValue* additional = schema.find("additionalProperties");
  for (const auto& [key, member] : value.members()) {
    const std::string member_path = cat(path, path.empty() ? "" : ".", key);
    const JsonValue* property = properties == nullptr ? nullptr : properties->find(key);
    std::string fault;
    if (property != nullptr) {
      fault = fault_at(member, *property, member_path, depth + 1);
    } else if (additional != nullptr && additional->is_boolean()) {
      if (!additional->as_boolean()) fault = expected(member_path, "no such member", member);
    } else if (additional != nullptr) {
      fault = fault_at(member, *additional, member_path, depth + 1);
    }
    if (!fault.empty()) return fault;
  }
  return "";
}

std::string keyword_fault(const JsonValue& value, const std::string& keyword, const JsonValue& operand,
                          const std::string& path, int depth) {
  constexpr std::array<std::string_view, 4> kRemarks = {"title", "description", "default", "examples"};
  constexpr std::array<std::string_view, 3> kOfObjects = {"properties", "required", "additionalProperties"};
  const auto is_one_of = [&](const auto& names) { return std::ranges::find(names, keyword) != names.end(); };
  if (keyword.starts_with('$') || is_one_of(kRemarks) || is_one_of(kOfObjects)) return "";
  if (keyword == "type") return type_fault(value, operand, path);
  if (keyword == "const") return same_json(value, operand) ? "" : expected(path, format_json_spaced(operand), value);
  if (keyword == "enum") {
    const auto& items = operand.items();
    const bool found = std::ranges::any_of(items, [&](const JsonValue& item) { return same_json(value, item); });
    return found ? "" : expected(path, cat("one of ", format_json_spaced(operand)), value);
  }
  if (keyword == "items") {
    for (size_t i = 0; i < value.items().size(); ++i) {
      std::string fault = fault_at(value.items()[i], operand, cat(path, "[", i, "]"), depth + 1);
      if (!fault.empty()) return fault;
    }
    return "";
  }
  if (keyword == "minimum" || keyword == "maximum") {
    if (value.kind() != JsonKind::kNumber) return "";
    const bool holds =
        keyword == "minimum" ? number_of(value) >= number_of(operand) : number_of(value) <= number_of(operand);
    return holds ? "" : expected(path, cat("a ", keyword, " of ", operand.text()), value);
  }
  return cat("the schema's keyword \"", keyword, "\" is not understood here");
}

std::string fault_at(const JsonValue& value, const JsonValue& schema, const std::string& path, int depth) {
  if (depth > kMaxJsonDepth) return "the schema is nested too deeply";
  if (schema.is_boolean()) return schema.as_boolean() ? "" : expected(path, "nothing", value);
  if (!schema.is_object()) return "the schema is no object";
  for (const auto& [keyword, operand] : schema.members()) {
    std::string fault = keyword_fault(value, keyword, operand, path, depth);
    if (!fault.empty()) return fault;
  }
  return value.is_object() ? object_fault(value, schema, path, depth) : "";
}

}  // namespace

std::string schema_fault(const JsonValue& value, const JsonValue& schema) { return fault_at(value, schema, "", 0); }

bool same_json(const JsonValue& a, const JsonValue& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case JsonKind::kNull: return true;
    case JsonKind::kBoolean: return a.as_boolean() == b.as_boolean();
    case JsonKind::kNumber: return same_number(a.text(), b.text());
    case JsonKind::kString: return a.text() == b.text();
    case JsonKind::kArray: return std::ranges::equal(a.items(), b.items(), same_json);
    case JsonKind::kObject: break;
  }
  if (a.members().size() != b.members().size()) return false;
  return std::ranges::all_of(a.members(), [&](const JsonValue::Member& member) {
    const JsonValue* other = b.find(member.first);
    return other != nullptr && same_json(member.second, *other);
  });
}

}  // namespace tandem
