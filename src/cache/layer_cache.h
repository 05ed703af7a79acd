// cache/layer_cache.h: what one sequence remembers in one layer, and in all of them.
//
//   Two kinds, never one abstraction: a KdaState is rewritten in place and cannot be truncated; an MlaLatent grows by a
//   row a token and can. A prefix, a rollback or a migration is right only when both move together, so every LayerCache
//   carries its own position and the model checks that they agree before a step (systems.md §1.6, I1).
//
//   KdaState at rest   recurrent [H, K, V] (row = key channel), f32 or bf16
//                      conv      [W−1, 3P] raw projections, oldest first; columns q | k | v; f32 or bf16
//   MlaLatent at rest  pages of `page_tokens` rows [c (rank, normalised) | kpe (rope)], f32 or bf16
//   Threading: engine thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

#include "base/result.h"
#include "tensor/dtype.h"

namespace tandem {

// KdaState::position while a step rewrites the state or a capture; left behind by a step that failed on the way. No
// step accepts it.
inline constexpr int64_t kStateInFlight = -1;

// Memory of one KDA layer of one sequence, owned by whoever made the cache.
struct KdaState {
  void* recurrent = nullptr;  // [H, K, V]
  void* conv = nullptr;       // [W−1, 3P]
  DType dtype = DType::kF32;
  int64_t position = 0;        // tokens folded in, or kStateInFlight
  uint64_t state_version = 0;  // one more at every in-place change: a copy that notes it can tell that it is stale
};

// Memory of one MLA layer of one sequence: a page table. Rows [0, length) are written.
struct MlaLatent {
  std::span<std::byte* const> pages;
  int64_t page_tokens = 0;
  DType dtype = DType::kF32;
  int64_t length = 0;
  int64_t capacity() const { return static_cast<int64_t>(pages.size()) * page_tokens; }
};

using LayerCache = std::variant<KdaState, MlaLatent>;

// The caches of one sequence, layer by layer; what the model reads and advances.
struct SequenceCacheView {
  std::span<LayerCache> layers;
};

// The only two ways in which a model advances a cache, and never one for both: a recurrence replaces what it remembers,
// attention adds to it. Copies, restores and cuts are the owner's, and set the fields themselves.

// Marks the state as in flight, and returns the position it stood at, for append_kda_state().
int64_t begin_kda_state(KdaState& state);

// The recurrence has folded `num_tokens` (>= 0) tokens into the state, in place, and what the memory held before is
// gone: the state now stands at `before` + `num_tokens` and is one version on, also when that position is where it
// stood. For a capture it is the position at which the copy was taken. The state must be in flight: twice for one step
// is a bug.
void append_kda_state(KdaState& state, int64_t before, int64_t num_tokens);

// `num_rows` (>= 0) rows were written into the page table behind the last one, at [length, length + num_rows): they
// become part of the cache, and what was there stays as it is. Their pages must be there: beyond capacity() is a bug.
void append_mla_latent_page(MlaLatent& latent, int64_t num_rows);

// Tokens a layer's cache holds: KdaState::position or MlaLatent::length.
int64_t cached_tokens(const LayerCache& cache);

// The one length that every layer of the sequence agrees on; an error naming the first layer that does not.
Result<int64_t> agreed_length(const SequenceCacheView& cache);

}  // namespace tandem
