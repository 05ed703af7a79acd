// cost/step_scratch.h: the step arena's peak, from shapes alone: the allocations of model/forward.cpp and of the
// kernels behind it, in their order, with the arena's own rounding and growth (base/arena.h).
//
//   peak_bytes      most that is in use at once; touched, so resident
//   reserved_bytes  of the arena's blocks: each is at least twice the one before, so that a warm step allocates nothing
//   The kernels' part is that of AVX-512 at large, not to the byte: tests/cost holds it to running models within 15 %
//   of all the memory that they take. Threading: pure functions.
#pragma once

#include <cstdint>

#include "cost/step_cost.h"

namespace tandem {

struct StepShape {
  bool is_prefill = true;
  int64_t sequences = 1;
  int64_t rows = 1;        // of the step, all sequences
  int64_t logit_rows = 1;  // of them, with logits
  int64_t context = 1;     // tokens of the longest sequence, this step's included
  int threads = 1;
  int64_t lanes = 16;  // f32 in a register of the kernels' instruction set
};

struct StepScratch {
  int64_t peak_bytes = 0;
  int64_t reserved_bytes = 0;
  // Parts of the peak.
  int64_t residual_bytes = 0;  // residual stream: running sum, stored blocks, mix, sublayer output
  int64_t layer_bytes = 0;     // activations and kernel scratch of the layer at the peak, or the logits
  int64_t layer = 0;           // the layer at the peak; num_hidden_layers: the head
};

StepScratch step_scratch(const ModelCost& model, const StepShape& shape);

}  // namespace tandem
