// weights/checkpoint_check.h: a checkpoint's headers against the tensors that a configuration implies.
//
//   How a tensor is stored is read from the file, tensor by tensor: `<name>.weight` in BF16, F16 or F32, or, for routed
//   experts, `<name>.weight_packed` + `<name>.weight_scale` (MXFP4). `language_model.layers.…` is accepted for
//   `language_model.model.layers.…`. Vision, projector and MTP tensors are held to their shapes like all others; a
//   missing MTP tensor is no fault. No tensor data is read: both modes of Checkpoint will do.
//   Threading: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "config/model_config.h"
#include "tandem/status.h"
#include "weights/checkpoint.h"
#include "weights/tensor_names.h"

namespace tandem {

inline constexpr int kNumDTypes = static_cast<int>(DType::kBool) + 1;

// One expected tensor as this checkpoint stores it.
struct StoredTensor {
  TensorEntry weight;                // the plain tensor, or the packed codes
  std::optional<TensorEntry> scale;  // MXFP4 alone
};

struct TensorTotals {
  int64_t tensors = 0;     // in the file: an MXFP4 matrix is two
  int64_t parameters = 0;  // logical: two a packed byte, scales not counted, A_log as stored
  uint64_t bytes = 0;
};

struct CheckpointReport {
  struct Unknown {
    std::string name;
    std::string shard;
  };

  std::vector<std::string> missing;    // names as released
  std::vector<Unknown> unknown;        // in the file, and no part of this configuration
  std::vector<std::string> misshapen;  // wrong shape, type, storage or content; a sentence each, with name and shard

  TensorTotals text;                                      // run by the text model
  TensorTotals vision;                                    // vision tower and projector
  TensorTotals mtp;                                       // multi-token-prediction layers
  std::array<TensorTotals, kNumTensorGroups> by_group{};  // recognised tensors
  std::array<TensorTotals, kNumDTypes> by_dtype{};        // every tensor of the file; parameters stay 0
  uint64_t scale_bytes = 0;                               // of by_group's MXFP4 tensors

  bool is_clean() const { return missing.empty() && unknown.empty() && misshapen.empty(); }
  // OK when clean; else one message with the totals of each kind and the first names of each.
  Status to_status(std::string_view checkpoint_dir) const;
};

// Called for each expected tensor that is there in a proper shape and type; may report what else is wrong with it.
using StoredTensorVisitor =
    FunctionRef<void(const ExpectedTensor&, const StoredTensor&, std::vector<std::string>& misshapen)>;

// O(n log n) in the number of tensors.
CheckpointReport check_checkpoint(const Checkpoint& checkpoint, const ModelConfig& config, StoredTensorVisitor visit);
CheckpointReport check_checkpoint(const Checkpoint& checkpoint, const ModelConfig& config);

}  // namespace tandem
