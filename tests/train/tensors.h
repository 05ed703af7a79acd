// tests/train/tensors.h: golden tensors and vectors as torch tensors, and back.
#pragma once

#include <ATen/ATen.h>

#include <span>
#include <vector>

#include "support/golden.h"

namespace tandem::test {

inline at::Tensor torch_tensor(const GoldenTensor& tensor) {
  if (tensor.dtype == "I32") {
    return at::tensor(tensor.i32, at::TensorOptions().dtype(at::kInt)).reshape(tensor.shape).to(at::kLong);
  }
  return at::tensor(tensor.f32, at::TensorOptions().dtype(at::kFloat)).reshape(tensor.shape);
}

inline std::vector<float> floats(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kFloat).contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

}  // namespace tandem::test
