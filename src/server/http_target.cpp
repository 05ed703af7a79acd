#include "server/http_target.h"

#include <algorithm>
#include <optional>

#include "base/cat.h"
#include "base/utf8.h"

namespace tandem {
namespace {

std::optional<int> hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

bool starts_with_ignoring_case(std::string_view text, std::string_view lower_case_prefix) {
  if (text.size() < lower_case_prefix.size()) return false;
  return std::equal(lower_case_prefix.begin(), lower_case_prefix.end(), text.begin(),
                    [](char p, char t) { return p == (t >= 'A' && t <= 'Z' ? static_cast<char>(t + 32) : t); });
}

// What is left of an absolute target behind scheme and authority; the target itself when it is none.
std::string_view without_authority(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!starts_with_ignoring_case(target, scheme)) continue;
    const size_t end = target.find_first_of("/?#", scheme.size());
    return end == std::string_view::npos ? std::string_view{"/"} : target.substr(end);
  }
  return target;
}

}  // namespace

Result<std::string> percent_decode(std::string_view text, std::string_view what) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    const auto high = i + 1 < text.size() ? hex_digit(text[i + 1]) : std::nullopt;
    const auto low = i + 2 < text.size() ? hex_digit(text[i + 2]) : std::nullopt;
    if (!high || !low) return Status::invalid(cat(what, ": expected two hexadecimal digits after '%' at byte ", i));
    out.push_back(static_cast<char>(*high * 16 + *low));
    i += 2;
  }
  if (!is_valid_utf8(out)) return Status::invalid(cat(what, ": expected UTF-8, found other bytes"));
  return out;
}

Result<HttpTarget> parse_http_target(std::string_view target) {
  if (target == "*") return HttpTarget{"*", ""};
  std::string_view rest = without_authority(target);
  rest = rest.substr(0, rest.find('#'));
  const size_t question = rest.find('?');
  HttpTarget out;
  if (question != std::string_view::npos) out.query = std::string{rest.substr(question + 1)};
  std::string_view raw_path = rest.substr(0, question);
  if (raw_path.empty() && rest.data() != target.data()) raw_path = "/";  // "http://host?query"
  if (raw_path.empty() || raw_path.front() != '/') {
    return Status::invalid("request target: expected a path that begins with '/'");
  }
  auto path = percent_decode(raw_path, "request path");
  if (!path.is_ok()) return path.status();
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::any_of(path.value().begin(), path.value().end(), is_control)) {
    return Status::invalid("request path: expected no control characters");
  }
  const auto query = percent_decode(out.query, "request query");
  if (!query.is_ok()) return query.status();
  out.path = std::move(path).value();
  return out;
}

}  // namespace tandem
