// kernels/row_ranges.h: which rows of a batch belong to prompts. They come many at a time, so a backend may have a form
// for them that pays only then; as every row of a prompt takes it, alone or among others, its bits depend on nothing
// else.
#pragma once

#include <cstdint>
#include <span>

namespace tandem {

struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Ascending, not empty, not touching each other, in [0, rows).
inline bool are_row_ranges(std::span<const RowRange> ranges, int64_t rows) {
  int64_t last = -1;
  for (const RowRange& range : ranges) {
    if (range.begin <= last || range.end <= range.begin || range.end > rows) return false;
    last = range.end;
  }
  return true;
}

// visit(begin, end, is_inside) for the ranges and what lies between them, ascending.
template <class Visit>
void for_each_run(std::span<const RowRange> ranges, int64_t rows, const Visit& visit) {
  int64_t next = 0;
  for (const RowRange& range : ranges) {
    if (range.begin > next) visit(next, range.begin, false);
    visit(range.begin, range.end, true);
    next = range.end;
  }
  if (next < rows) visit(next, rows, false);
}

}  // namespace tandem
