#include "text/json_value.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/cat.h"
#include "text/json_format.h"

namespace tandem {
namespace {

using nlohmann::json;

// Makes every unpaired surrogate escape \ufffd, which the parser accepts: the text keeps its length.
std::string replace_lone_surrogates(std::string_view text) {
  std::string out(text);
  const auto surrogate = [&](size_t i) -> int {  // 1 high, 2 low, 0 neither, of the escape at i
    if (i + 6 > out.size() || out[i] != '\\' || out[i + 1] != 'u' || (out[i + 2] | 0x20) != 'd') return 0;
    const char digit = static_cast<char>(out[i + 3] | 0x20);
    if (!std::isxdigit(static_cast<unsigned char>(out[i + 4])) ||
        !std::isxdigit(static_cast<unsigned char>(out[i + 5]))) {
      return 0;
    }
    if (digit == '8' || digit == '9' || digit == 'a' || digit == 'b') return 1;
    return digit >= 'c' && digit <= 'f' ? 2 : 0;
  };
  for (size_t i = 0; i + 1 < out.size();) {
    if (out[i] != '\\') {
      ++i;
    } else if (surrogate(i) == 1 && surrogate(i + 6) == 2) {
      i += 12;
    } else if (surrogate(i) != 0) {
      out.replace(i, 6, "\\ufffd");
      i += 6;
    } else {
      i += 2;  // skips the character behind the backslash, so that \\u is not read as an escape
    }
  }
  return out;
}

// Keeps the last value of a repeated key at the key's first place.
void merge_repeated_keys(std::vector<JsonValue::Member>& members) {
  std::vector<size_t> order(members.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return members[a].first < members[b].first; });
  std::vector<bool> dropped(members.size());
  bool any = false;
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    while (end < order.size() && members[order[end]].first == members[order[begin]].first) dropped[order[end++]] = true;
    if (end - begin > 1) {
      members[order[begin]].second = std::move(members[order[end - 1]].second);
      any = true;
    }
    begin = end;
  }
  if (!any) return;
  size_t kept = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    if (dropped[i]) continue;
    if (kept != i) members[kept] = std::move(members[i]);
    ++kept;
  }
  members.resize(kept);
}

// Builds a JsonValue from nlohmann's event interface, which hands out the literal text of floats and of integers
// beyond 64 bits.
class Builder : public nlohmann::json_sax<json> {
 public:
  bool null() override { return put(JsonValue()); }
  bool boolean(bool value) override { return put(JsonValue::boolean(value)); }
  bool number_integer(number_integer_t value) override { return put(JsonValue::number(cat(value))); }
  bool number_unsigned(number_unsigned_t value) override { return put(JsonValue::number(cat(value))); }
  bool number_float(number_float_t value, const string_t& literal) override {
    const bool is_integer = literal.find_first_of(".eE") == std::string::npos;
    return put(JsonValue::number(is_integer ? literal : python_float(value)));
  }
  bool string(string_t& value) override { return put(JsonValue::string(std::move(value))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(JsonValue::object()); }
  bool start_array(size_t) override { return open(JsonValue::array()); }
  bool key(string_t& value) override {
    keys_.back() = std::move(value);
    return true;
  }
  bool end_object() override {
    merge_repeated_keys(open_.back().mutable_members());
    return close();
  }
  bool end_array() override { return close(); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    error_ = cat("byte ", position, ": ", describe(error.what()));
    return false;
  }

  JsonValue take_root() { return std::move(root_); }
  const std::string& error() const { return error_; }

 private:
  // The library's text starts with "[json.exception.…] "; its position is given already.
  static std::string_view describe(std::string_view what) {
    const size_t bracket = what.find("] ");
    return bracket == std::string_view::npos ? what : what.substr(bracket + 2);
  }

  bool open(JsonValue value) {
    if (open_.size() >= kMaxJsonDepth) {
      error_ = cat("expected at most ", kMaxJsonDepth, " nested levels");
      return false;
    }
    open_.push_back(std::move(value));
    keys_.emplace_back();
    return true;
  }

  bool close() {
    JsonValue value = std::move(open_.back());
    open_.pop_back();
    keys_.pop_back();
    return put(std::move(value));
  }

  bool put(JsonValue value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_array()) {
      open_.back().mutable_items().push_back(std::move(value));
    } else {
      open_.back().mutable_members().emplace_back(std::move(keys_.back()), std::move(value));
    }
    return true;
  }

  JsonValue root_;
  std::vector<JsonValue> open_;    // the containers around the current place
  std::vector<std::string> keys_;  // of each open container: the key of the value that comes next
  std::string error_;
};

}  // namespace

JsonValue JsonValue::boolean(bool value) {
  JsonValue out;
  out.kind_ = JsonKind::kBoolean;
  out.boolean_ = value;
  return out;
}

JsonValue JsonValue::number(std::string text) {
  JsonValue out;
  out.kind_ = JsonKind::kNumber;
  out.text_ = std::move(text);
  return out;
}

JsonValue JsonValue::string(std::string text) {
  JsonValue out;
  out.kind_ = JsonKind::kString;
  out.text_ = std::move(text);
  return out;
}

JsonValue JsonValue::array() {
  JsonValue out;
  out.kind_ = JsonKind::kArray;
  return out;
}

JsonValue JsonValue::object() {
  JsonValue out;
  out.kind_ = JsonKind::kObject;
  return out;
}

const JsonValue* JsonValue::find(std::string_view key) const {
  for (const auto& [name, value] : members_) {
    if (name == key) return &value;
  }
  return nullptr;
}

const JsonValue* JsonValue::find_set(std::string_view key) const {
  const JsonValue* value = find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::string_view json_kind_name(JsonKind kind) {
  switch (kind) {
    case JsonKind::kNull: return "null";
    case JsonKind::kBoolean: return "boolean";
    case JsonKind::kNumber: return "number";
    case JsonKind::kString: return "string";
    case JsonKind::kArray: return "array";
    case JsonKind::kObject: return "object";
  }
  return "value";
}

Result<JsonValue> parse_json(std::string_view text, std::string_view origin) {
  Builder builder;
  const bool parsed = text.find("\\u") == std::string_view::npos
                          ? json::sax_parse(text, &builder)
                          : json::sax_parse(replace_lone_surrogates(text), &builder);
  if (!parsed) return Status::invalid(cat(origin, ": expected JSON, ", builder.error()));
  return builder.take_root();
}

}  // namespace tandem
