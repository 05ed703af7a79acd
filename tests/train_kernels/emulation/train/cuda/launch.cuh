// tests/train_kernels/emulation/train/cuda/launch.cuh: takes the place of src/train/cuda/launch.cuh, so that the
// kernels' source compiles for the CPU: one thread of a block after the other, each running until it waits for the
// rest.
//
//   What it shows: indexing, barriers and arithmetic, on any machine. What it cannot: races between barriers, and
//   speed. Shared memory holds NaNs when a block begins. Threading: launches take turns.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>

#include "train/cuda/kernels.h"

#define __global__
#define __device__
#define __launch_bounds__(...)

struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }

struct dim3 {
  explicit dim3(unsigned x_extent = 1, unsigned y_extent = 1) : x(x_extent), y(y_extent) {}
  unsigned x, y;
};

namespace tandem::train::cuda {

// Of the thread that runs.
const dim3& emulated_thread();
const dim3& emulated_block();
const dim3& emulated_block_extent();
const dim3& emulated_grid_extent();
float4* shared_memory();
void emulated_block_barrier();
void emulated_warp_barrier();
// The value of lane `from` of the warp, or with `exclusive_or` of this lane's number xor `from`.
float emulated_shuffle(float value, int from, bool exclusive_or);
// Runs body as every thread of every block. 0, or 1 where the chip has not so much shared memory.
int emulated_launch(const std::function<void()>& body, dim3 grid, int threads, size_t shared_bytes);

inline int partial_warps(int dim) {  // as the launcher's
  constexpr int kSharedFloats = 12 * 1024;
  const int fitting = kSharedFloats / dim;
  return fitting < 1 ? 1 : (fitting > 8 ? 8 : fitting);
}

template <class... Parameters, class... Arguments>
int launch(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared_bytes, Stream, Arguments... arguments) {
  std::tuple<Parameters...> values(static_cast<Parameters>(arguments)...);
  return emulated_launch([&] { std::apply(kernel, values); }, grid, threads, shared_bytes);
}

}  // namespace tandem::train::cuda

#define threadIdx (tandem::train::cuda::emulated_thread())
#define blockIdx (tandem::train::cuda::emulated_block())
#define blockDim (tandem::train::cuda::emulated_block_extent())
#define gridDim (tandem::train::cuda::emulated_grid_extent())

inline void __syncthreads() { tandem::train::cuda::emulated_block_barrier(); }
inline void __syncwarp() { tandem::train::cuda::emulated_warp_barrier(); }
inline float __shfl_sync(uint32_t, float value, int lane) {
  return tandem::train::cuda::emulated_shuffle(value, lane, false);
}
inline float __shfl_xor_sync(uint32_t, float value, int mask) {
  return tandem::train::cuda::emulated_shuffle(value, mask, true);
}
inline float __uint_as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline uint32_t __float_as_uint(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
