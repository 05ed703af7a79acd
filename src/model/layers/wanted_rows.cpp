#include "model/layers/wanted_rows.h"

#include <cstring>

#include "model/layers/rows.h"

namespace tandem {

int64_t wanted_rows(const SequenceStep& sequence) {
  switch (sequence.logits) {
    case LogitsWanted::kNone: return 0;
    case LogitsWanted::kLast: return 1;
    case LogitsWanted::kAll: return sequence.num_tokens;
  }
  return 0;
}

int64_t wanted_rows(const StepPlan& plan) {
  int64_t count = 0;
  for (const SequenceStep& sequence : plan.sequences) count += wanted_rows(sequence);
  return count;
}

MatrixView<float> gather_wanted_rows(const StepContext& step, const MatrixView<const float>& rows) {
  const MatrixView<float> wanted = alloc_rows(step, wanted_rows(step.plan), rows.shape[1]);
  int64_t row_end = 0, next = 0;
  for (const SequenceStep& sequence : step.plan.sequences) {
    row_end += sequence.num_tokens;
    for (int64_t i = row_end - wanted_rows(sequence); i < row_end; ++i) {
      std::memcpy(wanted.row(next++), rows.row(i), static_cast<size_t>(rows.shape[1]) * sizeof(float));
    }
  }
  return wanted;
}

std::span<const RowRange> prefill_ranges(Arena& arena, const StepPlan& plan, bool only_wanted) {
  const std::span<RowRange> ranges = arena.alloc<RowRange>(static_cast<int64_t>(plan.sequences.size()));
  size_t count = 0;
  int64_t begin = 0;
  for (const SequenceStep& sequence : plan.sequences) {
    const int64_t rows = only_wanted ? wanted_rows(sequence) : sequence.num_tokens;
    const int64_t end = begin + rows;
    if (sequence.mode == StepMode::kPrefill && rows > 0) {
      if (count > 0 && ranges[count - 1].end == begin) {
        ranges[count - 1].end = end;
      } else {
        ranges[count++] = {begin, end};
      }
    }
    begin = end;
  }
  return ranges.first(count);
}

}  // namespace tandem
