#include "engine/serving/compute_path.h"

#include <algorithm>

#include "base/check.h"

namespace tandem {
namespace {

constexpr int64_t kKdaGrid = 16;    // where a prefill may be cut without changing its bits
constexpr size_t kMostSpans = 128;  // a conversation of so many turns is verified no more

}  // namespace

void ComputePath::append(int64_t begin, int64_t num_tokens, StepMode mode) {
  if (begin != length || (mode == StepMode::kPrefill && begin % kKdaGrid != 0)) is_known = false;
  if (spans.empty() || spans.back().mode != mode) spans.push_back({begin, mode});
  if (spans.size() > kMostSpans) is_known = false;
  if (!is_known) spans.clear();
  length = begin + num_tokens;
}

ComputePath ComputePath::first(int64_t num_tokens) const {
  ComputePath out;
  out.is_known = is_known;
  out.length = num_tokens;
  for (const PathSpan& span : spans) {
    if (span.begin < num_tokens) out.spans.push_back(span);
  }
  return out;
}

StepMode ComputePath::mode_at(int64_t position) const {
  TANDEM_CHECK(is_known && position < length && !spans.empty(), "the path is known here");
  const auto next = std::upper_bound(spans.begin(), spans.end(), position,
                                     [](int64_t at, const PathSpan& span) { return at < span.begin; });
  return std::prev(next)->mode;
}

int64_t ComputePath::end_of_span(int64_t position) const {
  const auto next = std::upper_bound(spans.begin(), spans.end(), position,
                                     [](int64_t at, const PathSpan& span) { return at < span.begin; });
  return next == spans.end() ? length : next->begin;
}

PathBook::Entry* PathBook::touch(const PrefixHash& prefix) {
  const auto at = entries_.find(prefix);
  if (at == entries_.end()) return nullptr;
  order_.splice(order_.begin(), order_, at->second.place);
  return &at->second;
}

void PathBook::note(const PrefixHash& prefix, const ComputePath& path) {
  if (Entry* entry = touch(prefix); entry != nullptr) {
    if (!(entry->path == path)) entry->path.is_known = false;
    return;
  }
  order_.push_front(prefix);
  entries_.emplace(prefix, Entry{.path = path, .place = order_.begin()});
  if (static_cast<int64_t>(entries_.size()) <= max_prefixes_) return;
  entries_.erase(order_.back());
  order_.pop_back();
}

void PathBook::erase(const PrefixHash& prefix) {
  const auto at = entries_.find(prefix);
  if (at == entries_.end()) return;
  order_.erase(at->second.place);
  entries_.erase(at);
}

std::optional<ComputePath> PathBook::find(const PrefixHash& prefix) {
  const Entry* entry = touch(prefix);
  if (entry == nullptr || !entry->path.is_known) return std::nullopt;
  return entry->path;
}

}  // namespace tandem
