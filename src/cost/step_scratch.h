// cost/step_scratch.h: the step arena's peak, from shapes alone: the allocations of model/forward.cpp and of the
// kernels behind it, in their order, with the arena's own rounding and growth (base/arena.h). Its one owner: `tandem
// plan` shows it, and the memory budget of a streamed model is divided with it.
//
//   peak_bytes      most that is in use at once
//   touched_bytes   of the arena's blocks, in whole pages: resident afterwards
//   reserved_bytes  of the blocks: each is at least twice the one before, so that a warm step allocates nothing
//   Never below what a step of the shape takes, and at most 15 % above (tests/cost); the reference kernels, which keep
//   little or the keys of a whole context, are counted as the portable ones. Threading: pure functions.
#pragma once

#include <cstdint>

#include "cost/step_cost.h"
#include "kernels/kernel_table.h"

namespace tandem {

struct StepShape {
  int64_t prompt_rows = 0;     // rows of prompts
  int64_t prompts = 0;         // sequences that they belong to
  int64_t longest_prompt = 0;  // rows of the longest; 0: all are equally long
  int64_t decode_rows = 0;     // sequences with a token each
  int64_t logit_rows = 1;
  int64_t context = 1;  // tokens of the longest sequence, this step's included
  int threads = 1;
  KernelBackend kernels = KernelBackend::kAvx512;
  bool streams_experts = false;   // the next layer's router runs ahead
  bool mxfp8_experts = false;     // ExpertAct::kMxfp8
  bool bf16_activations = false;  // no fused decode
  bool observed = false;          // every row goes through to the end

  int64_t rows() const { return prompt_rows + decode_rows; }
  int64_t sequences() const { return prompts + decode_rows; }
};

struct StepScratch {
  int64_t peak_bytes = 0;
  int64_t touched_bytes = 0;
  int64_t reserved_bytes = 0;
  // Parts of the peak.
  int64_t residual_bytes = 0;  // residual stream: running sum, stored blocks, mix, sublayer output
  int64_t layer_bytes = 0;     // activations and kernel scratch of the layer at the peak, or the logits
  int64_t layer = 0;           // the layer at the peak; num_hidden_layers: the head
};

StepScratch step_scratch(const ModelCost& model, const StepShape& shape);

// Steps up to a size, of whatever mix of prompts and decoded tokens.
struct StepLimits {
  int64_t rows = 1;
  int64_t sequences = 1;
  int64_t logit_rows = 1;
};
// The most that one of them touches; of `shape` counts what the limits do not say.
int64_t most_scratch_bytes(const ModelCost& model, const StepLimits& limits, StepShape shape);

}  // namespace tandem
