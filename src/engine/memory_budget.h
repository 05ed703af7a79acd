// engine/memory_budget.h: how a model fits a budget of memory: all of it resident; or the routed experts in as many
// slots as the rest of the process leaves; or the trunk, too, read from disk layer by layer.
//
//   The budget is of the whole process: what it holds without the model, the trunk (everything but routed experts and
//   the rows of the embedding that no step reads), scratch of a step, caches, and expert slots. decide_memory() divides
//   it at load; MemoryKeeper holds it afterwards: at every step it looks at what is resident, and slots are given up
//   for caches that have grown, or taken back. Threading: engine thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/arena.h"
#include "base/result.h"
#include "stream/expert_store.h"

namespace tandem {

struct MemoryOptions {
  // Of the whole process, in bytes; none: what is available, where a model does not fit.
  std::optional<int64_t> ram_bytes = std::nullopt;
  int64_t step_rows = 512;      // rows of a step at most, for the scratch to be set aside
  int64_t step_sequences = 1;   // and sequences
  int64_t step_logit_rows = 0;  // rows with logits; 0: one of each sequence
  int64_t cache_bytes = 0;      // promised to caches beside the first sequence's
  double cache_share = 0.0;     // of the budget, promised likewise
};

struct MemoryNeeds {           // bytes
  int64_t process = 0;         // resident before the model is read
  int64_t trunk = 0;           // tensors of the text model but for routed experts
  int64_t trunk_streamed = 0;  // what stays of them when layers are read one by one, and the buffers for that
  int64_t embedding = 0;       // rows that are looked up; they stay where nothing is streamed
  int64_t experts = 0;         // all of them
  int64_t scratch = 0;         // of one step
  int64_t caches = 0;          // that are promised: states, pools
  int64_t slot = 0;            // of one expert; 0: no experts
  int64_t num_experts = 0;
  int64_t least_slots = 0;  // one token's experts of one layer
};

struct MemoryDecision {
  bool streamed = false;        // the routed experts, if there are any
  bool trunk_streamed = false;  // and the layers; only if streamed
  int64_t budget = 0;           // bytes; streamed only
  int64_t num_slots = 0;
};

// `asked` is the user's budget; without one `available` (what the process may hold in all, 0: unknown) decides, and a
// model that does not fit is streamed within it. kResourceExhausted for a budget below the least, naming each part.
Result<MemoryDecision> decide_memory(const MemoryNeeds& needs, std::optional<int64_t> asked, int64_t available);
// One line: what stays and what is streamed.
std::string describe(const MemoryDecision& decision, const MemoryNeeds& needs);

class MemoryKeeper {
 public:
  // `reserve` is the scratch that a step may take, what the arena has taken before included. Borrows both.
  MemoryKeeper(int64_t budget, int64_t reserve, ExpertStore& store, const Arena& arena)
      : budget_(budget), reserve_(reserve), store_(store), arena_(arena) {}

  // Before a step. kResourceExhausted when the fewest slots do not leave room for what else is resident.
  Status before_step(int64_t resident);

 private:
  const int64_t budget_;
  const int64_t reserve_;
  ExpertStore& store_;
  const Arena& arena_;
  bool trunk_is_resident_ = false;  // its pages come with the first step
};

}  // namespace tandem
