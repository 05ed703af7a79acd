#include "sched/chunk.h"

#include <algorithm>

namespace tandem {

int64_t chunk_end(int64_t begin, int64_t known, int64_t max_rows, int64_t grid) {
  if (known - begin <= max_rows) return known;
  const int64_t end = (begin + max_rows) / grid * grid;
  if (end <= begin) return begin;
  if (end == known - 1 && end - grid > begin) return end - grid;
  return end;
}

StepTime::Work chunk_work(int64_t begin, int64_t end) {
  const double rows = static_cast<double>(end - begin);
  return {rows, rows * (static_cast<double>(begin) + static_cast<double>(end) + 1) / 2};
}

int64_t rows_within(const StepTime& step_time, const StepTime::Work& work, int64_t begin, int64_t max_rows,
                    double seconds) {
  int64_t fits = 0;
  int64_t too_many = max_rows + 1;
  while (too_many - fits > 1) {
    const int64_t rows = fits + (too_many - fits) / 2;
    const StepTime::Work chunk = chunk_work(begin, begin + rows);
    const bool is_in_time =
        step_time.predict({work.rows + chunk.rows, work.row_context + chunk.row_context}) <= seconds;
    (is_in_time ? fits : too_many) = rows;
  }
  return fits;
}

}  // namespace tandem
