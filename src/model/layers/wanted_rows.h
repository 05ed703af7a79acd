// model/layers/wanted_rows.h: the rows whose logits a plan wants, which are the last rows of its sequences. Behind the
// last layer's caches nobody reads the others.
#pragma once

#include "model/forward.h"

namespace tandem {

// How many of the sequence's last rows.
int64_t wanted_rows(const SequenceStep& sequence);
int64_t wanted_rows(const StepPlan& plan);

// The plan's rows that belong to prompts: of all its rows, or of the wanted ones. In the arena.
std::span<const RowRange> prefill_ranges(Arena& arena, const StepPlan& plan, bool only_wanted);

// Those rows of a matrix over all of the plan's rows, one after the other, in the step's arena.
MatrixView<float> gather_wanted_rows(const StepContext& step, const MatrixView<const float>& rows);

}  // namespace tandem
