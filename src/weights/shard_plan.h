// weights/shard_plan.h: how a checkpoint's tensors are dealt out to `model-00001-of-000NN.safetensors` files, and the
// index that says so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weights/tensor_table.h"

namespace tandem {

struct PlannedShard {
  std::string name;
  int64_t first = 0;  // tensors [first, first + count) of the table, in its order
  int64_t count = 0;
  uint64_t data_bytes = 0;
};

// In table order; a shard is closed before it would exceed `max_shard_bytes`, and a larger tensor has one to itself.
std::vector<PlannedShard> plan_shards(const TensorTable& tensors, uint64_t max_shard_bytes);

// model.safetensors.index.json with metadata.total_size.
std::string shard_index_json(const TensorTable& tensors, const std::vector<PlannedShard>& shards);

}  // namespace tandem
