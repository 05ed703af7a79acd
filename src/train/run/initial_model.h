// train/run/initial_model.h: the parameters that a run begins with. Threading: the training thread.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>

#include "train/modules/train_model.h"
#include "train/run/recipe.h"

namespace tandem::train {

// Random by the recipe's seed; or those of init.from: the newest checkpoint of a run folder, or else a checkpoint in
// the released format, whose values are widened exactly (a build for GPU machines has no reader for that:
// kUnsupported). `warn` is told of damaged checkpoints that were passed over. Errors name init.from.
Result<TrainModel> initial_model(const Recipe& recipe, const ModelConfig& config, at::Device device,
                                 const std::function<void(const std::string&)>& warn);

}  // namespace tandem::train
