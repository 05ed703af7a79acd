// weights/resident_weights.h: the matrices of a checkpoint copied from the mapped file into one anonymous arena of huge
// pages, because a mapped file has 4 KiB pages and reading those costs a page walk every 64 cache lines.
//
//   With TrunkFormat::kInt8 the trunk is quantised on the way.
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

enum class TrunkFormat : uint8_t {
  kStored,  // as the file has it
  // WeightFormat::kInt8: half the bytes of bf16. Every matrix of the trunk, lm_head included; not the router, which
  // chooses experts, not kv_b_proj, which the absorbed attention reads by column, and not the embedding, norms, taps
  // and biases. Each weight is off by at most half the scale of its row (tensor/int8_rows.h).
  kInt8,
};

struct ResidentOptions {
  bool experts = true;  // the routed experts too, not the trunk alone
  TrunkFormat trunk = TrunkFormat::kStored;
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
