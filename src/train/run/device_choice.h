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

// Most bytes of tensors at any time so far; nothing on a CPU.
std::optional<int64_t> peak_memory_bytes(at::Device device);

}  // namespace tandem::train
