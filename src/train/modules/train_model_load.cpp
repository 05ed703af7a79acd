// TrainModel::load in a file of its own: what reads checkpoints needs simdjson, which a build for training alone does
// not.
#include <ATen/ATen.h>

#include <algorithm>

#include "base/cat.h"
#include "train/modules/train_model.h"
#include "train/modules/widen_tensor.h"

namespace tandem::train {

Result<TrainModel> TrainModel::load(const Checkpoint& checkpoint, const ModelConfig& config, at::ScalarType type,
                                    at::Device device) {
  TrainModel model(config);
  model.allocate(type, device);
  std::vector<float> values;
  const auto read = [&](const ExpectedTensor& tensor, const StoredTensor& stored, std::vector<std::string>& misshapen) {
    if (!tensor.run) return;
    widen_tensor(checkpoint, tensor, stored, values);
    const at::Tensor slice = model.slice_of(tensor);
    const auto wanted = static_cast<size_t>(slice.numel());
    if (std::any_of(values.begin() + static_cast<int64_t>(wanted), values.end(), [](float v) { return v != 0.f; })) {
      misshapen.push_back(cat(stored.weight.name, " has values behind its ", wanted, " heads, expected zeros"));
      return;
    }
    slice.copy_(at::from_blob(values.data(), slice.sizes(), at::kFloat));
  };
  TANDEM_RETURN_IF_ERROR(check_checkpoint(checkpoint, config, read).to_status(checkpoint.dir()));
  model.set_requires_grad();
  return model;
}

}  // namespace tandem::train
