#include "text/json_format.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/cat.h"

namespace tandem {
namespace {

struct JsonStyle {
  std::string_view comma;
  std::string_view colon;
  bool sorted;
};

void write_string(std::string& out, std::string_view text) {
  out.push_back('"');
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          constexpr std::string_view kHex = "0123456789abcdef";
          out += cat("\\u00", kHex[static_cast<size_t>(c) >> 4], kHex[static_cast<size_t>(c) & 15]);
        } else {
          out.push_back(c);
        }
    }
  }
  out.push_back('"');
}

void write_value(std::string& out, const JsonValue& value, const JsonStyle& style);

void write_object(std::string& out, const JsonValue& value, const JsonStyle& style) {
  std::vector<const JsonValue::Member*> members;
  for (const auto& member : value.members()) members.push_back(&member);
  // Bytes of UTF-8 compare like code points; std::string compares as unsigned bytes.
  if (style.sorted) std::sort(members.begin(), members.end(), [](auto* a, auto* b) { return a->first < b->first; });
  out.push_back('{');
  for (const auto* member : members) {
    if (member != members.front()) out += style.comma;
    write_string(out, member->first);
    out += style.colon;
    write_value(out, member->second, style);
  }
  out.push_back('}');
}

void write_value(std::string& out, const JsonValue& value, const JsonStyle& style) {
  switch (value.kind()) {
    case JsonKind::kNull: out += "null"; break;
    case JsonKind::kBoolean: out += value.as_boolean() ? "true" : "false"; break;
    case JsonKind::kNumber: out += value.text(); break;
    case JsonKind::kString: write_string(out, value.text()); break;
    case JsonKind::kArray:
      out.push_back('[');
      for (size_t i = 0; i < value.items().size(); ++i) {
        if (i > 0) out += style.comma;
        write_value(out, value.items()[i], style);
      }
      out.push_back(']');
      break;
    case JsonKind::kObject: write_object(out, value, style); break;
  }
}

}  // namespace

std::string format_json_sorted(const JsonValue& value) {
  std::string out;
  write_value(out, value, {",", ":", true});
  return out;
}

std::string format_json_spaced(const JsonValue& value) {
  std::string out;
  write_value(out, value, {", ", ": ", false});
  return out;
}

std::string python_float(double value) {
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  (void)error;  // the shortest scientific form of a double has at most 24 characters
  const std::string_view scientific(buffer, static_cast<size_t>(end - buffer));  // [-]d[.ddd]e±dd
  const size_t e = scientific.find('e');
  int exponent = 0;
  std::from_chars(scientific.data() + e + 1 + (scientific[e + 1] == '+'), end, exponent);
  const bool negative = scientific[0] == '-';
  std::string digits;
  for (const char c : scientific.substr(negative, e - negative)) {
    if (c != '.') digits.push_back(c);
  }
  std::string out = negative ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out += cat(".", std::string_view(digits).substr(1));
    const int magnitude = exponent < 0 ? -exponent : exponent;
    return out + cat("e", exponent < 0 ? '-' : '+', magnitude < 10 ? "0" : "", magnitude);
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

}  // namespace tandem
