#include "train/modules/mxfp8_fake_quant.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>

#include "base/check.h"
#include "tensor/mxfp4.h"

namespace tandem::train {
namespace {

constexpr double kE4M3Max = 448;
constexpr double kE4M3SmallestNormal = 0x1p-6;

// The exponent field of finite floats that are not negative: floor(log2(x)) + 127, 0 for zeros and subnormals.
at::Tensor exponent_field(const at::Tensor& x) { return at::bitwise_right_shift(x.view(at::kInt), at::Scalar(23)); }

// 2^e for e in [−127, 127], made of bits: a power function may be off by an ulp.
at::Tensor power_of_two(const at::Tensor& exponent) {
  const at::Tensor biased = exponent + 127;
  const at::Tensor bits = at::where(biased > 0, at::bitwise_left_shift(biased.clamp_min(1), at::Scalar(23)),
                                    at::full_like(biased, 1 << 22));  // 2^-127 is subnormal
  return bits.view(at::kFloat);
}

// Nearest E4M3 value, ties to even, saturating. NaN stays NaN.
at::Tensor round_e4m3(const at::Tensor& x) {
  const at::Tensor magnitude = x.abs().clamp_max(kE4M3Max);
  // Below 2^-6 the step is 2^-9; above, 2^-3 of the value's power of two. Dividing by it is exact.
  const at::Tensor power = at::bitwise_and(magnitude.view(at::kInt), at::Scalar(0x7F800000)).view(at::kFloat);
  const at::Tensor step = power.clamp_min(kE4M3SmallestNormal) * 0x1p-3;
  return (magnitude / step).round_().mul_(step).copysign(x);
}

class StraightThrough : public torch::autograd::Function<StraightThrough> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return mxfp8_round(x.to(at::kFloat)).to(x.scalar_type());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradient) {
    return gradient;
  }
};

}  // namespace

at::Tensor mxfp8_round(const at::Tensor& x) {
  TANDEM_CHECK(x.size(-1) % kMxGroup == 0, "MXFP8 groups are 32 wide");
  if (x.numel() == 0) return x.detach();
  const at::Tensor groups = x.detach().reshape({-1, kMxGroup});
  const at::Tensor largest = groups.abs().nan_to_num(0.0, std::numeric_limits<double>::infinity()).amax(1, true);
  // A subnormal maximum gives −127 by the clamp, whatever its own logarithm. 255 is that of an infinity: not used.
  const at::Tensor exponent = (exponent_field(largest) - (127 + 8)).clamp_min(-127);
  const at::Tensor rounded = round_e4m3(groups * power_of_two(-exponent)) * power_of_two(exponent);
  return at::where(largest.isinf(), groups, rounded).reshape(x.sizes());
}

at::Tensor mxfp8_fake_quant(const at::Tensor& x) { return StraightThrough::apply(x); }

}  // namespace tandem::train
