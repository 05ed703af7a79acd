// train/modules/held_tensors.h: which of a configuration's tensors a TrainModel has. No torch in here.
#pragma once

#include "base/result.h"
#include "config/model_config.h"
#include "weights/tensor_names.h"

namespace tandem::train {

// The model has one MTP layer, behind the text layers and without AttnRes; its embedding and head are the text model's
// own, written out once more by an export. Other numbers of MTP layers are not held.
inline bool has_mtp(const ModelConfig& config) {
  return config.num_nextn_predict_layers == 1 && config.kv_lora_rank > 0;
}

// Text tensors, and those of the MTP layer.
inline bool is_held(const ModelConfig& config, const ExpectedTensor& tensor) {
  return tensor.run || (tensor.group == TensorGroup::kMtp && has_mtp(config));
}

// The MTP layer's embedding and head, which are the text model's.
inline bool is_mtp_copy(const ExpectedTensor& tensor) {
  return tensor.group == TensorGroup::kMtp &&
         (tensor.role == TensorRole::kEmbedTokens || tensor.role == TensorRole::kLmHead);
}

// kInvalidArgument when the configuration declares MTP layers that a TrainModel does not have.
Status check_mtp(const ModelConfig& config);

// Numbers in the parameters of a TrainModel.
int64_t num_held_values(const ModelConfig& config);

}  // namespace tandem::train
