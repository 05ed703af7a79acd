// engine/doctor/sizing_check.h: whether memory holds the model, or what one token reads of it (field report 74: a cache
// below one token's working set serves no hit at all). `tandem plan` predicts speeds; this says where trouble begins.
#pragma once

#include <cstdint>

#include "config/model_config.h"
#include "engine/doctor/machine_checks.h"
#include "weights/checkpoint_check.h"

namespace tandem {

// Bytes of the text model as stored; `state` of one sequence's KDA states in f32.
struct ModelBytes {
  int64_t trunk = 0;              // everything but the routed experts; read for every token
  int64_t experts = 0;            // all routed experts
  int64_t experts_per_token = 0;  // those that one token chooses, over all layers
  int64_t state = 0;
  int64_t whole() const { return trunk + experts + state; }
  int64_t one_token() const { return trunk + experts_per_token + state; }
};
ModelBytes count_model_bytes(const ModelConfig& config, const CheckpointReport& tensors);

// sizing: memory. `random_gb_s` of the drives, 0: unknown.
void check_sizing(const ModelBytes& bytes, int64_t available_bytes, double random_gb_s, TellCheck tell);

}  // namespace tandem
