#include "train/run/device_choice.h"

#include <torch/cuda.h>
#include <unistd.h>

#include <charconv>
#include <cmath>

#include "base/cat.h"
#ifdef TANDEM_HAS_TRAIN_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

namespace tandem::train {

Result<at::Device> choose_device(const std::string& name) {
  const auto num_gpus = static_cast<int>(torch::cuda::device_count());
  if (name == "cpu" || (name == "auto" && num_gpus == 0)) return at::Device(at::kCPU);
  int index = 0;
  if (name != "auto" && name != "cuda") {
    const char* first = name.data() + 5;
    const char* last = name.data() + name.size();
    const bool is_number = name.starts_with("cuda:") && first != last;
    const auto [stop, error] =
        is_number ? std::from_chars(first, last, index) : std::from_chars_result{nullptr, std::errc::invalid_argument};
    if (error != std::errc() || stop != last || index < 0) {
      return Status::invalid(cat("--device: expected auto, cpu, cuda or cuda:<number>, found ", name));
    }
  }
  if (index >= num_gpus) {
    return Status::unsupported(cat("--device ", name, ": this LibTorch sees ", num_gpus, " CUDA devices"));
  }
  return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(index));
}

Status check_host_memory(at::Device device, int64_t num_values) {
  if (!device.is_cpu()) return Status::ok();
  const double needed = 3.0 * sizeof(float) * static_cast<double>(num_values);
  const double memory = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (memory <= 0 || needed <= memory) return Status::ok();
  return Status::exhausted(cat("model: training ", num_values, " parameters needs more than ", std::ceil(needed / 1e9),
                               " GB, this machine has ", std::floor(memory / 1e9), " GB"));
}

std::optional<int64_t> peak_memory_bytes([[maybe_unused]] at::Device device) {
#ifdef TANDEM_HAS_TRAIN_CUDA
  // [0]: of all pools together.
  if (device.is_cuda()) return c10::cuda::CUDACachingAllocator::getDeviceStats(device.index()).allocated_bytes[0].peak;
#endif
  return std::nullopt;
}

}  // namespace tandem::train
