// weights/tensor_names.h: every tensor that a configuration implies: released name, logical shape, role and released
// type (model.md §2). The one list behind binding, inspection, random initialisation and export.
//
//   K3 prefixes text tensors with `language_model.`; Kimi-Linear does not. `language_model.layers.…` is accepted as an
//   alias of `language_model.model.layers.…` when binding. The list is walked, not stored: K3 has 497,220 tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/function_ref.h"
#include "config/model_config.h"

namespace tandem {

enum class TensorGroup {
  kEmbedding, kHead, kNorm, kAttnRes, kKda, kMla, kDenseMlp, kRouter, kLatent, kSharedExpert, kRoutedExpert,
  kVision, kProjector, kMtp,
};
std::string_view tensor_group_name(TensorGroup group);

// How the released checkpoints store it; what a given file stores is read from the file.
enum class ReleasedForm { kBf16, kF32, kMxfp4 };

enum class ShapeRule {
  kExact,
  kALog,  // any shape with exactly num_heads elements, or more with an all-zero tail
};

struct ExpectedTensor {
  std::string_view name;           // valid during the visit; a routed expert's is "….w1.weight" whatever its storage
  std::span<const int64_t> shape;  // logical: [out, in] for an MXFP4 matrix too; as released for kALog
  TensorGroup group = TensorGroup::kNorm;
  ReleasedForm released = ReleasedForm::kBf16;
  ShapeRule shape_rule = ShapeRule::kExact;
  int64_t layer = -1;              // of the text layers; -1 outside them
  int64_t expert = -1;             // of routed experts; -1 elsewhere
  bool quantisable = false;        // may be stored as <name>_packed and <name>_scale instead
  bool run = true;                 // false: a known name that the text model does not read (vision, projector, MTP)
};

// In the order a person would read a checkpoint: embedding, layers, final norm, head, vision. MTP layers
// (num_nextn_predict_layers > 0) are included with run = false.
void for_each_expected_tensor(const ModelConfig& config, FunctionRef<void(const ExpectedTensor&)> visit);

}  // namespace tandem
