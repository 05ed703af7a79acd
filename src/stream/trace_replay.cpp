#include "stream/trace_replay.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "base/cat.h"
#include "base/check.h"

namespace tandem {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// The needs of a trace in the order they come, as ids over all layers.
std::vector<int64_t> needs_in_order(const RecordedTrace& trace) {
  std::vector<int64_t> needs;
  needs.reserve(static_cast<size_t>(trace.num_needs));
  for (const auto& token : trace.tokens) {
    for (size_t layer = 0; layer < token.size(); ++layer) {
      for (const int32_t expert : token[layer]) {
        needs.push_back(static_cast<int64_t>(layer) * trace.num_experts + expert);
      }
    }
  }
  return needs;
}

// For each need the place of the next one of the same expert.
std::vector<int64_t> next_needs(const std::vector<int64_t>& needs, int64_t num_ids) {
  std::vector<int64_t> next(needs.size());
  std::vector<int64_t> seen(static_cast<size_t>(num_ids), kNever);
  for (size_t i = needs.size(); i-- > 0;) {
    int64_t& later = seen[static_cast<size_t>(needs[i])];
    next[i] = later;
    later = static_cast<int64_t>(i);
  }
  return next;
}

}  // namespace

int64_t replay_hits(const RecordedTrace& trace, ExpertPolicy& policy, int64_t capacity) {
  std::vector<bool> has_memory(static_cast<size_t>(trace.num_layers * trace.num_experts), false);
  const auto place = [&](ExpertKey key) { return static_cast<size_t>(key.layer * trace.num_experts + key.expert); };
  int64_t used = 0, hits = 0;
  std::vector<int32_t> missing;
  for (const auto& token : trace.tokens) {
    for (int32_t layer = 0; layer < trace.num_layers; ++layer) {
      const std::vector<int32_t>& needed = token[static_cast<size_t>(layer)];
      missing.clear();
      for (const int32_t expert : needed) {
        if (!has_memory[place({layer, expert})]) missing.push_back(expert);
      }
      hits += static_cast<int64_t>(needed.size() - missing.size());
      policy.on_step(layer, needed);
      const auto is_pinned = [&](ExpertKey key) {
        return key.layer == layer && std::binary_search(needed.begin(), needed.end(), key.expert);
      };
      for (const int32_t expert : missing) {
        const ExpertKey incoming = {layer, expert};
        if (used == capacity) {
          const std::optional<ExpertKey> victim = policy.victim(incoming, false, is_pinned);
          if (!victim.has_value()) continue;  // fewer places than the step needs: used and dropped
          TANDEM_CHECK(has_memory[place(*victim)] && !is_pinned(*victim), "a victim has memory and is not pinned");
          has_memory[place(*victim)] = false;
          policy.on_remove(*victim);
          --used;
        }
        has_memory[place(incoming)] = true;
        policy.on_insert(incoming);
        ++used;
      }
    }
  }
  return hits;
}

int64_t belady_hits(const RecordedTrace& trace, int64_t capacity, BeladyAdmission admission) {
  const std::vector<int64_t> needs = needs_in_order(trace);
  const int64_t num_ids = trace.num_layers * trace.num_experts;
  const std::vector<int64_t> next = next_needs(needs, num_ids);
  std::vector<int64_t> held_until(static_cast<size_t>(num_ids), -1);  // next need of what is held
  std::set<std::pair<int64_t, int64_t>> held;                         // (next need, id)
  int64_t hits = 0;
  for (size_t i = 0; i < needs.size(); ++i) {
    int64_t& until = held_until[static_cast<size_t>(needs[i])];
    if (until >= 0) {
      ++hits;
      held.erase({until, needs[i]});
    } else if (static_cast<int64_t>(held.size()) == capacity) {
      if (capacity == 0) continue;
      const auto last = std::prev(held.end());
      if (admission == BeladyAdmission::kMayBypass && last->first <= next[i]) continue;
      held_until[static_cast<size_t>(last->second)] = -1;
      held.erase(last);
    }
    until = next[i];
    held.emplace(until, needs[i]);
  }
  return hits;
}

int64_t frequency_hits(const RecordedTrace& trace, int64_t capacity) {
  std::vector<int64_t> counts(static_cast<size_t>(trace.num_layers * trace.num_experts), 0);
  for (const int64_t id : needs_in_order(trace)) ++counts[static_cast<size_t>(id)];
  std::sort(counts.begin(), counts.end(), std::greater<>());
  int64_t hits = 0;
  for (size_t i = 0; i < counts.size() && static_cast<int64_t>(i) < capacity; ++i) {
    hits += std::max<int64_t>(counts[i] - 1, 0);  // the first need reads it
  }
  return hits;
}

Result<ReplayReport> replay_trace(const RecordedTrace& trace, const std::vector<double>& percents) {
  ReplayReport report;
  report.num_tokens = static_cast<int64_t>(trace.tokens.size());
  report.num_layers = trace.num_layers;
  report.num_experts = trace.num_experts;
  report.num_needs = trace.num_needs;
  for (const double percent : percents) {
    if (!(percent > 0 && percent <= 100)) {
      return Status::invalid(cat("capacity: expected percent above 0, at most 100, found ", percent));
    }
    ReplayRow row;
    row.percent = percent;
    row.capacity =
        static_cast<int64_t>(std::floor(percent / 100 * static_cast<double>(trace.num_layers * trace.num_experts)));
    if (row.capacity == 0) {
      return Status::invalid(cat("capacity: ", percent, " % of ", trace.num_layers, " × ", trace.num_experts,
                                 " experts is less than one"));
    }
    const auto hits = [&](std::unique_ptr<ExpertPolicy> policy) { return replay_hits(trace, *policy, row.capacity); };
    row.lru = hits(make_lru_policy(trace.num_layers, trace.num_experts));
    row.lfru = hits(make_lfru_policy(trace.num_layers, trace.num_experts));
    row.reuse = hits(make_reuse_policy(trace.num_layers, trace.num_experts));
    row.frequency = frequency_hits(trace, row.capacity);
    row.belady = belady_hits(trace, row.capacity, BeladyAdmission::kMayBypass);
    report.rows.push_back(row);
  }
  return report;
}

}  // namespace tandem
