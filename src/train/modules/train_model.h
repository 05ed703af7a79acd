// train/modules/train_model.h: the text model with trainable parameters: the engine's mathematics (model/forward.h)
// over packed documents, differentiable.
//
//   Parameters carry released names (weights/tensor_names.h), with two differences that exporting undoes: the routed
//   experts of a layer are stacked under "….experts.*.w1.weight", and A_log holds its num_heads valid entries alone.
//   The router bias is no parameter of the gradient: requires_grad is off and the balancer writes it.
//   Threading: forward() only reads; one thread changes parameters, and not during a forward or backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/result.h"
#include "config/model_config.h"
#include "train/modules/held_tensors.h"
#include "train/modules/layer_parameters.h"
#include "train/modules/moe.h"
#include "train/modules/sequence_layout.h"
#include "weights/checkpoint.h"

namespace tandem::train {

struct Parameter {
  std::string name;
  TensorRole role = TensorRole::kNotRun;
  TensorGroup group = TensorGroup::kNorm;
  int64_t layer = -1;  // -1 outside the layers
  bool trainable = true;
  at::Tensor value;
};

enum class InitStyle {
  kCheckpoint,  // the values of weights/init_values.h: everything is random, gates and norms too
  kTraining,    // a start for training: norms 1, pseudo-queries and router bias 0, small logits
};

struct ForwardOptions {
  at::ScalarType compute = at::kFloat;      // type of the activations; parameters are cast where they are used
  bool mxfp4_experts = false;               // routed experts as MXFP4, gradient straight through
  bool mxfp8_activations = false;           // and their inputs as MXFP8; check_mxfp8_widths() is ok
  bool recompute_sublayers = false;         // keep sublayer inputs alone for the backward pass
  std::vector<Routing>* routing = nullptr;  // receives one entry a layer; dense layers leave theirs empty
  at::Tensor* before_norm = nullptr;        // receives the rows before the final norm [T, D]
};

class TrainModel {
 public:
  // Parameters of `type` (float, or double for gradient checks) on `device`. Vision tensors are not held.
  static TrainModel random(const ModelConfig& config, uint64_t seed, InitStyle style, at::ScalarType type = at::kFloat,
                           at::Device device = at::kCPU);
  // Every fault of the checkpoint in one Status. Stored values are widened exactly; MXFP4 is decoded.
  static Result<TrainModel> load(const Checkpoint& checkpoint, const ModelConfig& config,
                                 at::ScalarType type = at::kFloat, at::Device device = at::kCPU);

  const ModelConfig& config() const { return config_; }
  std::vector<Parameter>& parameters() { return parameters_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const Parameter* find(std::string_view name) const;
  // The tensors of one layer, or with -1 those outside the layers.
  const LayerParameters& layer_parameters(int64_t layer) const { return scopes_[static_cast<size_t>(layer + 1)]; }
  // Every held tensor that the configuration implies, in released order, with its value: of a routed expert its slice
  // [out, in], of A_log the valid entries.
  void for_each_released(FunctionRef<void(const ExpectedTensor&, const at::Tensor&)> visit) const;

  // The model stays where it is until the backward pass is over.
  // tokens [T] int64, valid ids → hidden rows behind the final norm [T, D].
  at::Tensor hidden(const at::Tensor& tokens, const SequenceLayout& layout, const ForwardOptions& options) const;
  // hidden rows [n, D] → logits [n, vocab].
  at::Tensor head(const at::Tensor& hidden_rows) const;
  // What predicts the token after next, for head() [T, D]: the MTP layer over the rows that `before_norm` received and
  // the token behind each of them (next_tokens [T] int64; any valid id at the end of a document). The layout is that of
  // hidden(), as are the options, whose routing receives an entry more. has_mtp() is true.
  // Source: model.md §7; UNVERIFIED there: no weights of the kind are public.
  at::Tensor mtp_hidden(const at::Tensor& before_norm, const at::Tensor& next_tokens, const SequenceLayout& layout,
                        const ForwardOptions& options) const;
  at::Tensor forward(const at::Tensor& tokens, const SequenceLayout& layout, const ForwardOptions& options) const {
    return head(hidden(tokens, layout, options));
  }

 private:
  explicit TrainModel(const ModelConfig& config) : config_(config) {}
  void allocate(at::ScalarType type, at::Device device);
  void set_requires_grad();
  // Norm and attention, norm and feed-forward of a layer.
  at::Tensor attention(int64_t layer, const at::Tensor& h, const LayerParameters& weights,
                       const SequenceLayout& layout) const;
  at::Tensor feed_forward(int64_t layer, const at::Tensor& h, const LayerParameters& weights,
                          const MoeOptions& options) const;
  // Norm and feed-forward of a layer, whose routing options.routing receives.
  at::Tensor run_feed_forward(int64_t layer, const at::Tensor& h, const ForwardOptions& options) const;
  LayerParameters& scope(int64_t layer) { return scopes_[static_cast<size_t>(layer + 1)]; }
  // The part of its parameter that holds the released tensor.
  at::Tensor slice_of(const ExpectedTensor& tensor) const;

  ModelConfig config_;
  std::vector<Parameter> parameters_;
  std::vector<LayerParameters> scopes_;  // [0]: outside the layers
};

}  // namespace tandem::train
