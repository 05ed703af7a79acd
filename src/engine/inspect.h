// engine/inspect.h: what a model is, from its configuration, index and shard headers alone: no tensor is read, so a
// header-only copy of a 1.56 TB checkpoint serves as well. A bare config.json is accepted too: the report then states
// what a checkpoint of that shape holds as released.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "cache/cache_layout.h"
#include "config/model_config.h"
#include "weights/checkpoint_check.h"

namespace tandem {

struct InspectReport {
  std::string model;  // as asked for
  bool has_checkpoint = false;
  int64_t num_shards = 0;
  ModelConfig config;
  CacheLayout cache;  // of one sequence, f32
  int64_t num_tensors = 0;
  uint64_t total_bytes = 0;
  CheckpointReport tensors;  // of a bare config.json: as released, nothing missing

  bool is_clean() const { return tensors.is_clean(); }
};

// `model` is a folder or a config.json. Missing, unknown and mis-shaped tensors are part of the report; a checkpoint
// whose files contradict each other is an error.
Result<InspectReport> inspect_model(const std::string& model);

std::string inspect_text(const InspectReport& report);  // lines, the last one ended
std::string inspect_json(const InspectReport& report);  // one document, keys in a fixed order

}  // namespace tandem
