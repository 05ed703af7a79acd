// model/plan_check.h: is a step plan consistent with itself, the model and the caches it names? Asked before anything
// is touched.
#pragma once

#include <span>

#include "base/arena.h"
#include "cache/layer_cache.h"
#include "config/model_config.h"
#include "plan/step_plan.h"

namespace tandem {

// `arena` holds scratch of the check; it is given back.
Status check_step_plan(const ModelConfig& config, const StepPlan& plan, std::span<const SequenceCacheView> caches,
                       Arena& arena);

}  // namespace tandem
