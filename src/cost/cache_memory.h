// cost/cache_memory.h: memory that sequences take, and which part of it holds nothing: a sequence by itself (run,
// score, bench: pages of its own) and in the server's pool of equal blocks (cache/pool_layout.h).
//
//   alone   states + pages · page_bytes in every MLA layer
//   pool    every block is as large as the largest kind needs: a KDA block of a group carries the page's rounding, a
//           column slot without a layer and the memory page's rounding; an MLA block the unused rest of its last page
//   Threading: pure functions.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.h"
#include "cache/pool_layout.h"
#include "cost/step_cost.h"

namespace tandem {

struct SequenceMemory {
  int64_t states = 0;   // KDA, convolution history included
  int64_t latents = 0;  // of the tokens
  int64_t padding = 0;  // held and unused
  int64_t total() const { return states + latents + padding; }
};

struct CacheMemory {
  int64_t page_tokens = 0;  // of a sequence by itself
  SequenceMemory alone;
  std::optional<PoolLayout> pool;  // none for kReference, which has no pool
  int64_t pool_blocks = 0;         // of one sequence
  SequenceMemory pooled;
};

// Of one sequence of `tokens` tokens. kInvalidArgument: the hash unit does not fit the pool.
Result<CacheMemory> cache_memory(const ModelCost& model, int64_t tokens, int64_t hash_unit);

}  // namespace tandem
