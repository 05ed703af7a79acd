#include "config/json_fields.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/cat.h"

namespace tandem {
namespace {

using nlohmann::json;

constexpr size_t kMaxDescribedText = 60;

std::string describe_range(std::string_view what, IntRange range) {
  return cat(what, " from ", range.min, " to ", range.max);
}

// An integer in the file that int64 holds; 3.0 is not one.
std::optional<int64_t> as_integer(const json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t n = value.get<uint64_t>();
    if (n > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(n);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}

bool in_range(int64_t value, IntRange range) { return value >= range.min && value <= range.max; }

}  // namespace

void ConfigProblems::add(std::string_view path, std::string_view expected, std::string_view found) {
  lines_.push_back(cat(path, ": expected ", expected, ", found ", found));
}

Status ConfigProblems::to_status(std::string_view origin) const {
  if (lines_.empty()) return Status::ok();
  std::string message = cat(origin, ": ", lines_.size(), lines_.size() == 1 ? " problem" : " problems");
  for (const std::string& line : lines_) message += cat('\n', line);
  return Status::invalid(std::move(message));
}

std::string describe(const json& value) {
  if (value.is_array()) return cat("a list of ", value.size());
  if (value.is_object()) return "an object";
  // Scalars alone reach dump(): it recurses into containers, and a file may nest them without bound.
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kMaxDescribedText) text = text.substr(0, kMaxDescribedText) + "…";
  return text;
}

std::string JsonFields::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : cat(path_, '.', key);
}

const json* JsonFields::find(std::string_view key) const {
  if (object_ == nullptr || !object_->is_object()) return nullptr;
  const auto field = object_->find(std::string(key));
  if (field == object_->end() || field->is_null()) return nullptr;
  return &*field;
}

std::optional<int64_t> JsonFields::integer(std::string_view key, IntRange range) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> n = as_integer(*value);
  if (n.has_value() && in_range(*n, range)) return n;
  problem(key, describe_range("an integer", range));
  return std::nullopt;
}

std::optional<int64_t> JsonFields::required_integer(std::string_view key, IntRange range) const {
  if (!has(key)) {
    problem(key, describe_range("an integer", range));
    return std::nullopt;
  }
  return integer(key, range);
}

std::optional<double> JsonFields::number(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) {
    const double x = value->get<double>();
    if (std::isfinite(x)) return x;
  }
  problem(key, "a finite number");
  return std::nullopt;
}

std::optional<double> JsonFields::positive_number(std::string_view key) const {
  const std::optional<double> x = number(key);
  if (!x.has_value() || *x > 0) return x;
  problem(key, "a number above 0");
  return std::nullopt;
}

std::optional<bool> JsonFields::boolean(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  problem(key, "true or false");
  return std::nullopt;
}

std::optional<std::string> JsonFields::text(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  problem(key, "a string");
  return std::nullopt;
}

std::optional<std::vector<int64_t>> JsonFields::integer_list(std::string_view key, IntRange range) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::string expected = describe_range("a list of integers", range);
  if (!value->is_array()) {
    problem(key, expected);
    return std::nullopt;
  }
  std::vector<int64_t> list;
  for (const json& item : *value) {
    const std::optional<int64_t> n = as_integer(item);
    if (!n.has_value() || !in_range(*n, range)) {
      problem(key, expected, cat(describe(item), " at position ", list.size()));
      return std::nullopt;
    }
    list.push_back(*n);
  }
  return list;
}

JsonFields JsonFields::object(std::string_view key) const {
  const json* value = find(key);
  if (value != nullptr && !value->is_object()) {
    problem(key, "an object");
    value = nullptr;
  }
  return {value, path_of(key), *problems_};
}

void JsonFields::expect_text(std::string_view key, std::string_view expected) const {
  const json* value = find(key);
  if (value == nullptr) return;
  if (!value->is_string() || value->get_ref<const std::string&>() != expected) problem(key, cat('"', expected, '"'));
}

void JsonFields::expect_boolean(std::string_view key, bool expected) const {
  const json* value = find(key);
  if (value == nullptr) return;
  if (!value->is_boolean() || value->get<bool>() != expected) problem(key, cat(expected));
}

void JsonFields::expect_integer(std::string_view key, int64_t expected) const {
  const json* value = find(key);
  if (value == nullptr) return;
  if (as_integer(*value) != expected) problem(key, cat(expected));
}

void JsonFields::expect_null(std::string_view key) const {
  if (has(key)) problem(key, "null");
}

void JsonFields::problem(std::string_view key, std::string_view expected) const {
  const json* value = find(key);
  problem(key, expected, value == nullptr ? "nothing" : describe(*value));
}

void JsonFields::problem(std::string_view key, std::string_view expected, std::string_view found) const {
  problems_->add(path_of(key), expected, found);
}

}  // namespace tandem
