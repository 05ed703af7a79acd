// weights/resident_weights.h: the matrices of a checkpoint copied from the mapped file into one anonymous arena of huge
// pages, because a mapped file has 4 KiB pages and reading those costs a page walk every 64 cache lines.
//
//   place() copies over the threads of the pool, chunk by chunk, points the views of `weights` at the copies and lets
//   the source pages go at once: the process holds each matrix once, give or take a chunk a thread. Rows are copied
//   whole and every matrix begins on a cache line, whatever the file aligns. What is not copied (the embedding, of
//   which a step reads a row a token; the routed experts when asked) stays a view of the file.
//   Lifetime: outlives the ModelWeights whose views it holds. Threading: place() on the engine thread; immutable after.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "base/thread_pool.h"
#include "weights/model_weights.h"

namespace tandem {

struct ResidentOptions {
  bool experts = true;  // the routed experts too, not the trunk alone
};

class ResidentWeights {
 public:
  // What place() would take.
  static uint64_t bytes_needed(const ModelWeights& weights, const ResidentOptions& options);
  // kResourceExhausted when the system gives no such memory; `weights` is unchanged then.
  static Result<ResidentWeights> place(const Checkpoint& checkpoint, const ResidentOptions& options, ThreadPool& pool,
                                       ModelWeights& weights);

  ResidentWeights() = default;  // holds nothing
  ResidentWeights(ResidentWeights&& other) noexcept;
  ResidentWeights& operator=(ResidentWeights&& other) noexcept;
  ~ResidentWeights();

  uint64_t bytes() const { return arena_bytes_; }

 private:
  std::byte* base_ = nullptr;
  uint64_t mapped_bytes_ = 0;  // the address range, a huge page longer than the arena so that it can be aligned
  uint64_t arena_bytes_ = 0;
};

}  // namespace tandem
