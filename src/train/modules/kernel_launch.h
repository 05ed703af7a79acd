// train/modules/kernel_launch.h: what every call of a fused kernel (train/cuda) from tensors needs: where it runs, its
// element type, its memory, its error. For kernel_calls.cpp and kda_kernel_calls.cpp.
#pragma once

#include <ATen/ATen.h>

#include "train/cuda/kernels.h"
#ifdef TANDEM_HAS_TRAIN_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace tandem::train::kernels {

#ifdef TANDEM_HAS_TRAIN_CUDA
// The device of a tensor made current, and its stream.
class Place {
 public:
  explicit Place(const at::Tensor& x)
      : guard_(x.device()), stream_(c10::cuda::getCurrentCUDAStream(x.device().index()).stream()) {}
  cuda::Stream stream() const { return stream_; }

 private:
  c10::cuda::CUDAGuard guard_;
  cuda::Stream stream_;
};
#else
struct Place {
  explicit Place(const at::Tensor&) {}
  static cuda::Stream stream() { return nullptr; }
};
#endif

inline void check(int code, const char* kernel) {
  TORCH_CHECK(code == 0, kernel, ": expected a launch without error, found CUDA error ", code);
}

inline cuda::Element element_of(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat ? cuda::Element::kFloat : cuda::Element::kBfloat16;
}

inline at::Tensor floats(at::IntArrayRef shape, const at::Tensor& like) {
  return at::empty(shape, at::TensorOptions().dtype(at::kFloat).device(like.device()));
}

// New memory in the shape of x, row-major whatever x's strides are.
inline at::Tensor dense_like(const at::Tensor& x) { return at::empty(x.sizes(), x.options().requires_grad(false)); }

inline float* float_data(const at::Tensor& x) { return x.data_ptr<float>(); }

}  // namespace tandem::train::kernels
