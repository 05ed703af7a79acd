// evaluate/greedy_batch.h: many prompts decoded greedily, several at a time in one step plan.
//
//   Prompts are prefilled one after the other, in chunks; their decode steps share one plan, and a sequence that ends
//   makes room for the next prompt. A row of a plan does not depend on its neighbours, so every reply is what the
//   engine's Generator gives for its prompt alone. Threading: engine thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "base/function_ref.h"
#include "base/result.h"
#include "engine/generate.h"
#include "engine/loaded_model.h"

namespace tandem {

struct GreedyTask {
  std::vector<TokenId> prompt;  // not empty
  int64_t max_tokens = 0;       // at least 1
};

struct GreedyReply {
  std::vector<TokenId> tokens;  // a stop token not included
  FinishReason finish_reason = FinishReason::kLength;
};

struct GreedyBatchOptions {
  int64_t max_sequences = 16;
  int64_t max_cached_tokens = 262'144;  // of all sequences together, unless one alone needs more
  int64_t prefill_chunk = kDefaultPrefillChunk;
  std::vector<TokenId> stop_tokens;
};

// `progress` hears tasks done of all. kNonFinite when logits are; what the engine refuses.
Result<std::vector<GreedyReply>> decode_greedily(LoadedModel& model, const std::vector<GreedyTask>& tasks,
                                                 const GreedyBatchOptions& options,
                                                 FunctionRef<void(int64_t done, int64_t total)> progress);

}  // namespace tandem
