// train/run/device_choice.h: where a run computes, and how much of a GPU's memory it has used. Threading: any thread.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"

namespace tandem::train {

// "auto" (the first CUDA device, or the CPU), "cpu", "cuda" or "cuda:<number>". kUnsupported when it is not there.
Result<at::Device> choose_device(const std::string& name);

// kResourceExhausted when the machine's memory cannot hold a training run on the CPU of a model with `num_values`
// parameters: each with its gradient and at least one number of the optimiser, in float. Linux would grant the memory
// and end the process, or another one, later.
Status check_host_memory(at::Device device, int64_t num_values);

// Most bytes of tensors at any time so far; nothing on a CPU.
std::optional<int64_t> peak_memory_bytes(at::Device device);

}  // namespace tandem::train
