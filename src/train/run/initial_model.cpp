#include "train/run/initial_model.h"

#include <ATen/ATen.h>

#include <filesystem>
#include <utility>

#include "base/cat.h"
#include "train/run/run_folder.h"
#include "train/run/train_checkpoint.h"

namespace tandem::train {
namespace {

bool is_released_checkpoint(const std::string& dir) {
  std::error_code ignored;
  return std::filesystem::exists(dir + "/model.safetensors", ignored) ||
         std::filesystem::exists(dir + "/model.safetensors.index.json", ignored);
}

Result<TrainModel> load_released(const std::string& dir, const ModelConfig& config, at::Device device) {
#ifdef TANDEM_GPU_BUILD
  static_cast<void>(config);
  static_cast<void>(device);
  return Status::unsupported(cat(dir, ": a build for GPU machines begins from run folders alone"));
#else
  const Result<Checkpoint> checkpoint = Checkpoint::open(dir);
  if (!checkpoint.is_ok()) return checkpoint.status();
  return TrainModel::load(checkpoint.value(), config, at::kFloat, device);
#endif
}

}  // namespace

Result<TrainModel> initial_model(const Recipe& recipe, const ModelConfig& config, at::Device device,
                                 const std::function<void(const std::string&)>& warn) {
  const auto random = [&] {
    return TrainModel::random(config, recipe.init_seed, InitStyle::kTraining, at::kFloat, device);
  };
  if (!recipe.init_from) return random();
  const auto refused = [](const Status& status) { return Status(status.code(), cat("init.from: ", status.message())); };
  if (list_checkpoints(*recipe.init_from).empty() && is_released_checkpoint(*recipe.init_from)) {
    Result<TrainModel> released = load_released(*recipe.init_from, config, device);
    if (!released.is_ok()) return refused(released.status());
    return released;
  }
  const Result<TrainCheckpoint> from = read_newest_checkpoint(*recipe.init_from, warn);
  if (!from.is_ok()) return refused(from.status());
  TrainModel model = random();
  const Status restored = restore_parameters(from.value(), model);
  if (!restored.is_ok()) return refused(restored);
  return model;
}

}  // namespace tandem::train
