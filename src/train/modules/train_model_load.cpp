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
  int64_t num_read = 0;
  const auto read = [&](const ExpectedTensor& tensor, const StoredTensor& stored, std::vector<std::string>& misshapen) {
    if (!is_held(config, tensor) || is_mtp_copy(tensor)) return;
    ++num_read;
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
  int64_t num_held = 0;
  model.for_each_released(
      [&](const ExpectedTensor& tensor, const at::Tensor&) { num_held += is_mtp_copy(tensor) ? 0 : 1; });
  if (num_read < num_held) {  // only MTP tensors may be missing
    return Status::invalid(cat(checkpoint.dir(), ": expected all tensors of the declared MTP layer, found ",
                               num_held - num_read, " missing: set num_nextn_predict_layers to 0 to do without it"));
  }
  model.set_requires_grad();
  return model;
}

}  // namespace tandem::train
