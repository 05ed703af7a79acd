#include "train/modules/mxfp4_fake_quant.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tensor/mxfp4.h"

namespace tandem::train {
namespace {

// 2^e for e in [−127, 127], made of bits: a power function may be off by an ulp.
at::Tensor power_of_two(const at::Tensor& exponent) {
  const at::Tensor biased = exponent.to(at::kInt) + 127;
  const at::Tensor bits = at::where(biased > 0, at::bitwise_left_shift(biased.clamp_min(1), at::Scalar(23)),
                                    at::full_like(biased, 1 << 22));  // 2^-127 is subnormal
  return bits.view(at::kFloat);
}

// The index of the nearest E2M1 magnitude; a tie goes to the even code.
at::Tensor nearest_code(const at::Tensor& magnitude) {
  at::Tensor code = (magnitude > 0.25).to(at::kLong);
  code += (magnitude >= 0.75).to(at::kLong);
  code += (magnitude > 1.25).to(at::kLong);
  code += (magnitude >= 1.75).to(at::kLong);
  code += (magnitude > 2.5).to(at::kLong);
  code += (magnitude >= 3.5).to(at::kLong);
  code += (magnitude > 5.0).to(at::kLong);
  return code;
}

class StraightThrough : public torch::autograd::Function<StraightThrough> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& weight) {
    return mxfp4_round(weight.to(at::kFloat)).to(weight.scalar_type());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradient) {
    return gradient;
  }
};

}  // namespace

at::Tensor mxfp4_round(const at::Tensor& weight) {
  const at::Tensor groups = weight.detach().reshape({-1, kMxGroup});
  const at::Tensor magnitude = groups.abs();
  const at::Tensor largest = magnitude.amax(1, true);
  // frexp gives [0.5, 1) · 2^e, so floor(log2) is e − 1.
  const at::Tensor floor_log2 = std::get<1>(largest.frexp()).to(at::kInt) - 1;
  const at::Tensor exponent =
      at::where(largest > 0, (floor_log2 - 2).clamp(-127, 127), at::full_like(floor_log2, -127));
  const at::Tensor code = nearest_code(magnitude * power_of_two(-exponent));
  const at::Tensor values = at::from_blob(const_cast<float*>(kE2M1Values), {8}, at::kFloat).to(weight.device());
  const at::Tensor rounded = values.index_select(0, code.reshape({-1})).reshape(code.sizes()) * power_of_two(exponent);
  return at::where((groups < 0).logical_and(code > 0), -rounded, rounded).reshape(weight.sizes());
}

at::Tensor mxfp4_fake_quant(const at::Tensor& weight) {
  if (weight.size(-1) % kMxGroup != 0) return weight;
  return StraightThrough::apply(weight);
}

}  // namespace tandem::train
