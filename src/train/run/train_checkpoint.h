// train/run/train_checkpoint.h: the state of a run in one file, checkpoints/step-00001234.pt of the run folder.
//
//   A LibTorch archive (torch.load() reads it): {"meta": JSON text, "parameters": {name: tensor}, "optimizer":
//   {name: tensor}, "balancer": {name: tensor}}, all tensors as they are, on the CPU. The meta hold the counters, what
//   identifies the run (train/run/run_folder.h) and a hash over names and bytes, because the archive's own reader
//   checks none. The file appears complete or not at all. Threading: the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "train/modules/train_model.h"
#include "train/optim/optimizer.h"
#include "train/run/router_balancer.h"

namespace tandem::train {

struct TrainState {
  int64_t step = 0;  // completed
  int64_t num_optimizer_steps = 0;
  double seconds = 0;                 // spent on the run so far
  std::vector<double> recent_losses;  // of the loss guard
  std::string identity;               // JSON
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct TrainCheckpoint {
  std::string path;
  TrainState state;
  NamedTensors parameters;
  NamedTensors optimizer;
  NamedTensors balancer;
};

// kResourceExhausted on a full disk; what was there stays.
Status save_checkpoint(const std::string& path, const TrainState& state, const TrainModel& model,
                       const Optimizer& optimizer, const RouterBalancer& balancer);

// kInvalidArgument, naming the file, when it is damaged.
Result<TrainCheckpoint> read_checkpoint(const std::string& path);
// The newest of a run that is not damaged; `warn` hears of each one passed over. kNotFound when there is none.
Result<TrainCheckpoint> read_newest_checkpoint(const std::string& run_dir,
                                               const std::function<void(const std::string&)>& warn);

// Copies the values into the model, the optimiser's state or the balancer's; names and shapes must be the same on both
// sides.
Status restore_parameters(const TrainCheckpoint& checkpoint, TrainModel& model);
Status restore_optimizer(const TrainCheckpoint& checkpoint, Optimizer& optimizer);
Status restore_balancer(const TrainCheckpoint& checkpoint, RouterBalancer& balancer);

// The float parameters of a run: those of its newest checkpoint, or of the one after `step` steps.
Result<TrainModel> load_run_model(const std::string& run_dir, std::optional<int64_t> step, at::Device device);

}  // namespace tandem::train
