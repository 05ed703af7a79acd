#include "train/modules/functional.h"

#include <ATen/ATen.h>

#include "train/modules/kernel_calls.h"

namespace tandem::train {

at::Tensor widen(const at::Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  return type == at::kBFloat16 || type == at::kHalf ? x.to(at::kFloat) : x;
}

at::Tensor project(const at::Tensor& x, const at::Tensor& weight) {
  return at::matmul(x, weight.to(x.scalar_type()).t());
}

at::Tensor l2_norm(const at::Tensor& x, double eps) {
  const at::Tensor wide = widen(x);
  return (wide * (wide.square().sum(-1, true) + eps).rsqrt()).to(x.scalar_type());
}

}  // namespace tandem::train
