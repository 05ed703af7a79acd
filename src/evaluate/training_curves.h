// evaluate/training_curves.h: the log of a training run as a picture.
//
//   log.jsonl (train/run/run_log.h): one JSON object a line, {"step", "loss", "learning_rate", "grad_norm",
//   "tokens_per_second", "expert_load": [one a layer], "expert_load_mean", "expert_load_64": {"worst"}} for training
//   steps, {"step", "validation_loss"} for validations, perhaps with the name of their "data". A field that no line has
//   leaves its panel out; of a step that is there twice the last line counts. A last line that was cut off is left out.
//   Stateless: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem {

using Curve = std::map<int64_t, double>;  // by step, finite

struct TrainingCurves {
  Curve loss;
  std::map<std::string, Curve> validation_loss;  // by data
  Curve learning_rate;
  Curve grad_norm;
  Curve expert_load;       // largest over mean load, of the worst layer
  Curve expert_load_mean;  // the same, averaged over the layers
  Curve expert_load_64;    // over the tokens of 64 steps, of the worst layer
  Curve tokens_per_second;

  bool is_empty() const;
};

// kInvalidArgument names the line that is no JSON object, or has no step.
Result<TrainingCurves> parse_training_log(std::string_view text, std::string_view origin);

// Commands and data for gnuplot, which writes a PNG to its standard output.
std::string gnuplot_script(const TrainingCurves& curves, std::string_view title);

// A PNG, drawn by gnuplot. kNotFound when it is not installed; kInvalidArgument when there is nothing to draw.
Result<std::string> draw_training_curves(const TrainingCurves& curves, std::string_view title);

}  // namespace tandem
