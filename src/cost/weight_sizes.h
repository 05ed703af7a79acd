// cost/weight_sizes.h: how many bytes and parameters of a model's weights a step reads, and how they fall into groups.
//
//   One struct, three origins: the configuration alone (as released), a checkpoint's headers (as stored), bound weights
//   (as they lie in memory). They agree for the same checkpoint. No weight is read.
//   trunk    every matrix that each step multiplies with, but the head; embedding, experts and vectors are not in it
//   head     the matrix of the logits (the embedding table when tied)
//   expert   one routed expert: the mean, where experts are stored differently
//   last layer  behind its caches only the rows whose logits are wanted are computed (model/layers/wanted_rows.h)
//   Threading: pure functions.
#pragma once

#include <array>
#include <cstdint>

#include "config/model_config.h"
#include "weights/checkpoint.h"
#include "weights/model_weights.h"
#include "weights/tensor_names.h"

namespace tandem {

struct WeightAmount {
  int64_t parameters = 0;
  int64_t bytes = 0;
};

struct WeightSizes {
  WeightAmount trunk;
  WeightAmount head;
  WeightAmount expert;
  int64_t num_matrices = 0;  // of trunk and head
  int64_t moe_layers = 0;
  int64_t experts_per_layer = 0;
  // Of the trunk, in the last layer: matrices that only rows with logits meet, not read where there are none; and MLA's
  // kv_b, which meets every row where there are some.
  WeightAmount last_behind_cache;
  WeightAmount last_kv_b;
  bool fits_bf16 = true;  // every matrix is bf16 or MXFP4, which bf16 holds exactly: kernels/amx

  // Of the text model's tensors in the file; zero for bound weights, which know no groups.
  std::array<WeightAmount, kNumTensorGroups> groups{};
  int64_t vector_bytes = 0;  // norms, taps and biases, as the f32 copies that binding makes
  int64_t file_bytes = 0;    // all tensors of the file: vision and MTP too

  const WeightAmount& group(TensorGroup g) const { return groups[static_cast<size_t>(g)]; }
  int64_t num_experts() const { return moe_layers * experts_per_layer; }
  int64_t routed_bytes() const { return num_experts() * expert.bytes; }
  WeightAmount text() const;  // all groups
  // Parameters that a token meets: everything but the embedding table and the experts that are not chosen (systems.md
  // §0.2). An A_log's padding counts as stored.
  int64_t active_parameters(int64_t experts_per_token) const;
};

WeightSizes released_weight_sizes(const ModelConfig& config);
// The error lists what is missing or mis-shaped (weights/checkpoint_check.h). Either mode of Checkpoint will do.
Result<WeightSizes> stored_weight_sizes(const Checkpoint& checkpoint, const ModelConfig& config);
WeightSizes bound_weight_sizes(const ModelWeights& weights);

}  // namespace tandem
