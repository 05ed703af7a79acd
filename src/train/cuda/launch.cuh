// train/cuda/launch.cuh: starting a kernel with the argument types that it declares.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <tuple>
#include <utility>

#include "train/cuda/kernels.h"

namespace tandem::train::cuda {

// The shared memory that the launch asked for.
__device__ inline float4* shared_memory() {
  extern __shared__ float4 shared_bytes[];
  return shared_bytes;
}

// Warps of a block whose warps each keep a row of `dim` sums in shared memory.
inline int partial_warps(int dim) {
  constexpr int kSharedFloats = 12 * 1024;
  const int fitting = kSharedFloats / dim;
  return fitting < 1 ? 1 : (fitting > 8 ? 8 : fitting);
}

template <class... Parameters, class... Arguments>
int launch(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared_bytes, Stream stream,
           Arguments... arguments) {
  constexpr size_t kDefaultSharedBytes = 48 * 1024;  // more has to be asked for
  if (shared_bytes > kDefaultSharedBytes) {
    const cudaError_t status =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes));
    if (status != cudaSuccess) return status;
  }
  std::tuple<Parameters...> values(static_cast<Parameters>(arguments)...);
  return std::apply(
      [&](auto&... value) {
        void* pointers[] = {const_cast<void*>(static_cast<const void*>(&value))...};
        return static_cast<int>(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, dim3(threads), pointers,
                                                 shared_bytes, stream));
      },
      values);
}

}  // namespace tandem::train::cuda
