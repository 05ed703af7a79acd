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
  kEmbedding,
  kHead,
  kNorm,
  kAttnRes,
  kKda,
  kMla,
  kDenseMlp,
  kRouter,
  kLatent,
  kSharedExpert,
  kRoutedExpert,
  kVision,
  kProjector,
  kMtp,
};
std::string_view tensor_group_name(TensorGroup group);
inline constexpr int kNumTensorGroups = static_cast<int>(TensorGroup::kMtp) + 1;

// What a model uses the tensor for. kNotRun: vision and projector tensors. An MTP layer has the roles of a text layer,
// its embedding, head and norm those of the text model's.
enum class TensorRole {
  kEmbedTokens,
  kLmHead,
  kFinalNorm,
  kOutputAttnResNorm,
  kOutputAttnResProj,
  kInputLayernorm,
  kPostAttentionLayernorm,
  kSelfAttentionResNorm,
  kSelfAttentionResProj,
  kMlpResNorm,
  kMlpResProj,
  kKdaQProj,
  kKdaKProj,
  kKdaVProj,
  kKdaQConv,
  kKdaKConv,
  kKdaVConv,
  kKdaFAProj,
  kKdaFBProj,
  kKdaALog,
  kKdaDtBias,
  kKdaBProj,
  kKdaGProj,
  kKdaGAProj,
  kKdaGBProj,
  kKdaONorm,
  kKdaOProj,
  kMlaQProj,
  kMlaQAProj,
  kMlaQALayernorm,
  kMlaQBProj,
  kMlaKvAProj,
  kMlaKvALayernorm,
  kMlaKvBProj,
  kMlaGProj,
  kMlaOProj,
  kMlpGateProj,
  kMlpUpProj,
  kMlpDownProj,
  kRouter,
  kRouterBias,
  kLatentDown,
  kLatentNorm,
  kLatentUp,
  kSharedGateProj,
  kSharedUpProj,
  kSharedDownProj,
  kExpertW1,
  kExpertW2,
  kExpertW3,
  kMtpEmbeddingNorm,
  kMtpHiddenNorm,
  kMtpProj,
  kNotRun,
};

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
  TensorRole role = TensorRole::kNotRun;
  ReleasedForm released = ReleasedForm::kBf16;
  ShapeRule shape_rule = ShapeRule::kExact;
  int64_t layer = -1;        // MTP layers are counted on from the text layers; -1 outside them
  int64_t expert = -1;       // of routed experts; -1 elsewhere
  bool quantisable = false;  // may be stored as <name>_packed and <name>_scale instead
  bool run = true;           // false: a known name that the text model does not read (vision, projector, MTP)
  bool optional = false;     // its absence is no fault: MTP tensors, whose layout is not published

  int64_t num_elements() const {
    int64_t n = 1;
    for (const int64_t extent : shape) n *= extent;
    return n;
  }
  // As released: tensors in the file (an MXFP4 matrix is two) and their bytes.
  int64_t released_tensors() const { return released == ReleasedForm::kMxfp4 ? 2 : 1; }
  int64_t released_bytes() const;
};

// In the order a person would read a checkpoint: embedding, layers, final norm, head, MTP layers, vision. MTP layers
// (num_nextn_predict_layers > 0) are included with run = false and group kMtp throughout. Of an AttnRes pair the norm
// comes first; of the conv taps q, k, v in this order.
void for_each_expected_tensor(const ModelConfig& config, FunctionRef<void(const ExpectedTensor&)> visit);

}  // namespace tandem
