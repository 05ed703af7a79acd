// sched/chunk.h: how many rows of a prefill fit into a step. Pure arithmetic.
#pragma once

#include <cstdint>

#include "sched/step_time.h"

namespace tandem {

// The end of the next chunk of a sequence that knows `known` tokens and has computed `begin`, of at most `max_rows`
// rows: `known`, or a multiple of `grid`; `begin` when neither is in reach. A rest of one row would be computed as a
// decode, in other arithmetic than the same prompt in one chunk: it is left only where the chunk is one grid step.
int64_t chunk_end(int64_t begin, int64_t known, int64_t max_rows, int64_t grid);

StepTime::Work chunk_work(int64_t begin, int64_t end);

// At most `max_rows`: the rows from `begin` on that keep a step of `work` so far within `seconds`.
int64_t rows_within(const StepTime& step_time, const StepTime::Work& work, int64_t begin, int64_t max_rows,
                    double seconds);

}  // namespace tandem
