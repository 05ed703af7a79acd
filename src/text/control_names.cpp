#include "text/control_names.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "base/cat.h"
#include "text/json_value.h"

namespace tandem {
namespace {

constexpr int64_t kMaxControlIds = int64_t{1} << 20;  // K3 has 256

std::optional<int64_t> parse_id(std::string_view text) {
  int64_t id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc{} || end != text.data() + text.size() || cat(id) != text) return std::nullopt;
  return id;
}

}  // namespace

Result<ControlNames> ControlNames::parse(std::string_view config_json, int64_t first_id, int64_t vocab_size,
                                         std::string_view origin) {
  if (vocab_size < first_id || vocab_size > INT32_MAX) {
    return Status::invalid(cat(origin, ": the rank file has ", first_id, " entries; expected a vocabulary of ",
                               first_id, " to ", INT32_MAX, " ids, found ", vocab_size));
  }
  if (vocab_size - first_id > kMaxControlIds) {
    return Status::invalid(cat(origin, ": expected at most ", kMaxControlIds, " control ids behind the ", first_id,
                               " ranks, the vocabulary leaves ", vocab_size - first_id));
  }
  auto config = parse_json(config_json, origin);
  if (!config.is_ok()) return config.status();
  if (!config.value().is_object()) {
    return Status::invalid(cat(origin, ": expected an object, found ", json_kind_name(config.value().kind())));
  }
  ControlNames names;
  names.first_id_ = static_cast<int32_t>(first_id);
  names.names_.resize(vocab_size - first_id);
  if (const JsonValue* decoder = config.value().find("added_tokens_decoder")) {
    if (!decoder->is_object()) {
      return Status::invalid(
          cat(origin, ": added_tokens_decoder: expected an object, found ", json_kind_name(decoder->kind())));
    }
    for (const auto& [key, entry] : decoder->members()) {
      const auto bad = [&](std::string_view expected) {
        return Status::invalid(cat(origin, ": added_tokens_decoder[\"", key, "\"]: expected ", expected));
      };
      const auto id = parse_id(key);
      if (!id) return bad("a decimal id as key");
      if (*id < first_id || *id >= vocab_size) {
        return bad(cat("an id of the control block ", first_id, " to ", vocab_size - 1));
      }
      const JsonValue* content = entry.find("content");
      if (content == nullptr || !content->is_string() || content->text().empty())
        return bad("a non-empty string \"content\"");
      names.names_[*id - first_id] = content->text();
    }
  }
  for (int64_t i = 0; i < names.size(); ++i) {
    if (names.names_[i].empty()) names.names_[i] = cat("<|reserved_token_", first_id + i, "|>");
  }
  TANDEM_RETURN_IF_ERROR(names.index(origin));
  return names;
}

Status ControlNames::index(std::string_view origin) {
  sorted_.resize(names_.size());
  std::iota(sorted_.begin(), sorted_.end(), 0);
  std::sort(sorted_.begin(), sorted_.end(),
            [&](int32_t a, int32_t b) { return names_[a] != names_[b] ? names_[a] < names_[b] : a < b; });
  for (size_t i = 0; i < sorted_.size(); ++i) {
    const std::string& name = names_[sorted_[i]];
    starts_name_[static_cast<uint8_t>(name[0])] = true;
    if (i > 0 && names_[sorted_[i - 1]] == name) {
      return Status::invalid(cat(origin, ": expected every control name once, found \"", name, "\" for ids ",
                                 first_id_ + sorted_[i - 1], " and ", first_id_ + sorted_[i]));
    }
  }
  return Status::ok();
}

std::optional<TokenId> ControlNames::find(std::string_view name) const {
  const auto at = std::lower_bound(sorted_.begin(), sorted_.end(), name,
                                   [&](int32_t index, std::string_view wanted) { return names_[index] < wanted; });
  if (at == sorted_.end() || names_[*at] != name) return std::nullopt;
  return TokenId(first_id_ + *at);
}

// Narrows the sorted names to those that agree with the text, a byte at a time; a name that ends inside the range is
// its first entry.
std::optional<ControlNames::Match> ControlNames::longest_at(std::string_view text, size_t position) const {
  std::optional<Match> best;
  auto low = sorted_.begin();
  auto high = sorted_.end();
  for (size_t depth = 0; low != high; ++depth) {
    if (names_[*low].size() == depth) {
      best = Match{position, depth, TokenId(first_id_ + *low)};
      if (++low == high) break;
    }
    if (position + depth >= text.size()) break;
    const auto wanted = static_cast<uint8_t>(text[position + depth]);
    const auto byte_of = [&](int32_t index) { return static_cast<uint8_t>(names_[index][depth]); };
    low = std::partition_point(low, high, [&](int32_t index) { return byte_of(index) < wanted; });
    high = std::partition_point(low, high, [&](int32_t index) { return byte_of(index) <= wanted; });
  }
  return best;
}

std::optional<ControlNames::Match> ControlNames::first_in(std::string_view text) const {
  for (size_t position = 0; position < text.size(); ++position) {
    if (!starts_name_[static_cast<uint8_t>(text[position])]) continue;
    if (const auto match = longest_at(text, position)) return match;
  }
  return std::nullopt;
}

}  // namespace tandem
