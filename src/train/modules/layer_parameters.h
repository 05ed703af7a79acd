// train/modules/layer_parameters.h: the tensors of one layer by role; a role that the configuration does not have is an
// undefined tensor. Routed experts are stacked: kExpertW1 and kExpertW3 are [E, I, Dl], kExpertW2 is [E, Dl, I]. A_log
// holds its valid entries alone, [H].
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "weights/tensor_names.h"

namespace tandem::train {

class LayerParameters {
 public:
  at::Tensor& operator[](TensorRole role) { return tensors_[static_cast<size_t>(role)]; }
  const at::Tensor& operator[](TensorRole role) const { return tensors_[static_cast<size_t>(role)]; }

 private:
  std::array<at::Tensor, static_cast<size_t>(TensorRole::kNotRun) + 1> tensors_;
};

}  // namespace tandem::train
