// weights/init_values.h: which random values each tensor of a random checkpoint gets, so that a forward pass stays
// healthy: unit RMS through every projection (1/sqrt(fan-in)), logits of standard deviation 2, decays from the gate's
// bound to almost none, pseudo-queries whose scores have unit spread.
#pragma once

#include "config/model_config.h"
#include "weights/random_values.h"
#include "weights/tensor_names.h"

namespace tandem {

// Of the logical tensor; for an MXFP4 matrix `spread` is the RMS that codes and scales must give.
ValueRule init_rule(const ModelConfig& config, const ExpectedTensor& tensor);

}  // namespace tandem
