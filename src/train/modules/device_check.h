// train/modules/device_check.h: every operator of the trainer on a device against the same operator in double on the
// CPU, values and gradients; then whole models. For machines on which no test framework is at hand.
//
//   Inputs are rounded to the device's type first, so that both sides compute from equal numbers; the error of a tensor
//   is ‖found − expected‖ / ‖expected‖. Bounds: `unit` is the rounding of the type (2⁻²⁴ or 2⁻⁹), and an operator that
//   sums n terms in float and rounds its result once stays within a small multiple of unit + √n 2⁻²⁴.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "config/model_config.h"

namespace tandem::train {

struct CheckResult {
  std::string name;   // operator, shape, type
  std::string worst;  // tensor, element, found and expected, where the error is largest
  double error = 0;
  double bound = 0;
  bool passed() const { return error <= bound; }  // not for a NaN
};
// Both parts: `report` hears of every result as it is there. What throws is a failed result with the message.
void check_operators(at::Device device, FunctionRef<void(const CheckResult&)> report);
// Loss and gradients of small models, which may err by a few times what the CPU errs in the same types.
void check_models(at::Device device, FunctionRef<void(const CheckResult&)> report);

struct BenchResult {
  std::string name;
  double forward_ms = 0;
  double backward_ms = 0;
  double floor_bytes = 0;  // every input read once, every output written once, forward and backward
};
struct BenchShape {
  ModelConfig config;  // that a training run takes
  int64_t tokens = 131072;
  int64_t document = 1024;
};
// Bytes per second of a large copy, read and written ones counted.
double copy_bandwidth(at::Device device);
// Each operator that the model has at the model's widths, its layers and the whole of it, with bfloat16 activations.
void bench_device(at::Device device, const BenchShape& shape, FunctionRef<void(const BenchResult&)> report);

}  // namespace tandem::train
