// train/run/trainer.h: runs a training recipe: batches, steps, validation, log, checkpoints, and an orderly end.
//
//   A run that was stopped goes on from its newest checkpoint as if it had not been: bit for bit on one CPU with one
//   number of threads. A step whose loss or gradient is refused (loss_guard.h) is not taken: the run ends with
//   kNonFinite, <run>/bad-step-N.json tells what the step was, and the checkpoints are those of good steps: before one
//   is written its parameters have passed a forward pass.
//   No torch in here. Threading: one call at a time; `stop` may be set by a signal handler.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/result.h"
#include "train/run/recipe.h"
#include "train/run/run_folder.h"

namespace tandem::train {

struct TrainOptions {
  std::string device = "auto";
  ExistingRun existing = ExistingRun::kRefuse;
  std::optional<int64_t> max_steps;   // of this call
  std::optional<double> max_seconds;  // of this call; the step that runs is finished
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const std::string&)> progress = [](const std::string&) {};  // one line for a person
};

struct TrainSummary {
  std::string run;
  int64_t step = 0;  // completed
  int64_t num_steps = 0;
  int64_t tokens = 0;
  std::optional<double> loss;  // of this call's last step
  std::optional<double> validation_loss;
  double seconds = 0;            // of the run
  double tokens_per_second = 0;  // of this call
  std::string checkpoint;        // the newest
  bool is_finished() const { return step == num_steps; }
};

Result<TrainSummary> train(const Recipe& recipe, const TrainOptions& options);

}  // namespace tandem::train
