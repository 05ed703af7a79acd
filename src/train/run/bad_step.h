// train/run/bad_step.h: bad-step-N.json, the account of a step that a run ended at.
//
//   {"step", "reason", "loss", "grad_norm", "sequences": [{"stage", "data", "epoch", "sequence", "shard", "token"
//   (where a sequence of a stream begins in its shard), "tokens"}], "grad_norms": {parameter: norm}}; a number that is
//   not finite is a string. No torch in here. Threading: the training thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "train/run/recipe.h"
#include "train/run/run_data.h"

namespace tandem::train {

struct BadStep {
  int64_t step = 0;  // counting from 1
  std::string reason;
  double loss = 0;
  double grad_norm = 0;
  std::vector<std::pair<std::string, double>> grad_norms;
};

// The path of the file.
Result<std::string> write_bad_step(const Recipe& recipe, const RunData& data, const BadStep& step);

}  // namespace tandem::train
