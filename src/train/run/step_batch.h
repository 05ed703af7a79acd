// train/run/step_batch.h: the sequences of one optimiser step as micro-batches of tensors.
//
//   A micro-batch is whole sequences side by side, every piece of a document a document of its own. A row is trained
//   when it has a target; padding has none and is not valid. Threading: plain values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "base/function_ref.h"
#include "base/result.h"
#include "train/modules/sequence_layout.h"
#include "train/run/run_data.h"

namespace tandem::train {

struct MicroBatch {
  at::Tensor tokens;        // [T] int64
  at::Tensor trained_rows;  // [n] int64, ascending
  at::Tensor targets;       // [n] int64, of the trained rows
  at::Tensor valid_rows;    // [m] int64, ascending, of the rows that are no padding; undefined when every row is
  SequenceLayout layout;

  int64_t num_trained() const { return targets.size(0); }
};

struct StepBatch {
  int64_t step = 0;
  std::vector<SequencePlace> places;
  std::vector<MicroBatch> micro_batches;
  int64_t num_tokens = 0;  // positions, padding included
  int64_t num_trained = 0;
};

struct BatchOptions {
  int64_t micro_batch_tokens = 0;  // at least one sequence is taken
  int64_t chunk_size = 64;
  bool pinned = false;  // page-locked memory, which a GPU reads by itself
};

// `read(i, out)` gives sequence i of `num_sequences`, all of one length.
Result<std::vector<MicroBatch>> make_micro_batches(int64_t num_sequences,
                                                   FunctionRef<void(int64_t, PackedSequence&)> read,
                                                   const BatchOptions& options);
Result<StepBatch> make_step_batch(const RunData& data, int64_t step, const BatchOptions& options);

// A copy on the device. From page-locked memory the copies are queued and not waited for.
MicroBatch to_device(const MicroBatch& batch, at::Device device);

}  // namespace tandem::train
