// plan/step_plan.h: the work of one forward pass: rows of several sequences, each prefill or decode. Plain data.
//
//   The scheduler fills it and the model runs it; neither sees the other. Rows of one sequence are consecutive, in the
//   order of `sequences`. `cache` is an index into the cache views handed to the model with the plan.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace tandem {

// kPrefill: chunked KDA and expanded MLA. kDecode: recurrent KDA and absorbed MLA, for one token or a short
// speculative window.
enum class StepMode { kPrefill, kDecode };

enum class LogitsWanted { kNone, kLast, kAll };

// After the first `num_tokens` of this step's rows, copy every KDA state into cache view `cache`: the state at an inner
// position, for a checkpoint on a boundary or the commit point of a speculative window. A prefill is cut there: at a
// multiple of the KDA chunk its numbers stay bitwise what they were, elsewhere they agree within rounding.
struct StateCapture {
  int64_t num_tokens = 0;
  int64_t cache = 0;
};

struct SequenceStep {
  int64_t cache = 0;                // which cache view is read and advanced
  int64_t num_tokens = 0;           // rows of this step
  int64_t num_computed_tokens = 0;  // position of the first row; must equal the cache's
  StepMode mode = StepMode::kPrefill;
  LogitsWanted logits = LogitsWanted::kLast;
  std::vector<StateCapture> captures;  // ascending num_tokens
};

struct StepPlan {
  std::vector<TokenId> tokens;  // [sum of num_tokens]
  std::vector<SequenceStep> sequences;
};

}  // namespace tandem
