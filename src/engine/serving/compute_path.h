// engine/serving/compute_path.h: how the tokens of a prefix were computed, so that they can be computed so again.
//
//   Prefill and decode are the same function within rounding only (ADR 0002), and a router that chooses between two
//   near-equal experts turns that rounding into another number altogether. Each of the two by itself gives the same
//   bits however it is split, so a prefix computed again in the order of modes that made it must agree bit for bit: no
//   tolerance, no false alarm. A prefix whose path is not known for sure is not verified. ADR 0011.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <vector>

#include "cache/prefix_hash.h"
#include "plan/step_plan.h"

namespace tandem {

// Rows from `begin` to the next span's begin.
struct PathSpan {
  int64_t begin = 0;
  StepMode mode = StepMode::kPrefill;
  bool operator==(const PathSpan&) const = default;
};

struct ComputePath {
  std::vector<PathSpan> spans;
  int64_t length = 0;
  bool is_known = true;

  void append(int64_t begin, int64_t num_tokens, StepMode mode);
  ComputePath first(int64_t num_tokens) const;
  // The span that row `position` belongs to, and where it ends.
  StepMode mode_at(int64_t position) const;
  int64_t end_of_span(int64_t position) const;
  bool operator==(const ComputePath&) const = default;
};

// The paths of prefixes that may be in the cache, bounded: the longest untouched go first. Threading: engine thread
// only.
class PathBook {
 public:
  explicit PathBook(int64_t max_prefixes) : max_prefixes_(max_prefixes) {}

  // A sequence committed this prefix. Two that did so in different ways leave open whose numbers the cache keeps.
  void note(const PrefixHash& prefix, const ComputePath& path);
  void erase(const PrefixHash& prefix);                       // the cache has it no more
  std::optional<ComputePath> find(const PrefixHash& prefix);  // none: not known for sure

 private:
  struct Entry {
    ComputePath path;
    std::list<PrefixHash>::iterator place;
  };
  Entry* touch(const PrefixHash& prefix);

  int64_t max_prefixes_ = 0;
  std::map<PrefixHash, Entry> entries_;
  std::list<PrefixHash> order_;  // last touched first
};

}  // namespace tandem
