#include "server/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace tandem {
namespace {

// Knuth, Morris, Pratt: the length of the longest prefix of `text` that ends with `byte` behind `matched` bytes of it.
size_t advance(std::string_view text, const std::vector<size_t>& border, size_t matched, char byte) {
  if (matched == text.size()) matched = border[matched - 1];
  while (matched > 0 && text[matched] != byte) matched = border[matched - 1];
  return text[matched] == byte ? matched + 1 : 0;
}

}  // namespace

StopMatcher::StopMatcher(const std::vector<std::string>& stops, bool include_match) : include_match_(include_match) {
  for (const std::string& stop : stops) {
    if (stop.empty()) continue;
    Pattern& pattern = patterns_.emplace_back();
    pattern.text = stop;
    pattern.border.assign(stop.size(), 0);
    for (size_t i = 1; i < stop.size(); ++i) {
      pattern.border[i] = advance(stop, pattern.border, pattern.border[i - 1], stop[i]);
    }
  }
}

std::string StopMatcher::append(std::string_view text) {
  if (match_) return {};
  if (patterns_.empty()) return std::string(text);
  for (const char byte : text) {
    held_.push_back(byte);
    const Pattern* found = nullptr;
    for (Pattern& pattern : patterns_) {
      pattern.matched = advance(pattern.text, pattern.border, pattern.matched, byte);
      const bool is_complete = pattern.matched == pattern.text.size();
      if (is_complete && (found == nullptr || pattern.text.size() > found->text.size())) found = &pattern;
    }
    if (found == nullptr) continue;
    match_ = found->text;
    if (!include_match_) held_.resize(held_.size() - found->text.size());
    return std::exchange(held_, {});
  }
  size_t kept = 0;
  for (const Pattern& pattern : patterns_) kept = std::max(kept, pattern.matched);
  std::string certain = held_.substr(0, held_.size() - kept);
  held_.erase(0, held_.size() - kept);
  return certain;
}

std::string StopMatcher::flush() {
  for (Pattern& pattern : patterns_) pattern.matched = 0;
  return std::exchange(held_, {});
}

}  // namespace tandem
