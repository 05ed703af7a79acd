// train/cuda/device_math.cuh: loads and stores of vectors, sums over lanes, and the scalar functions of the kernels.
#pragma once

#include <cstdint>

namespace tandem::train::cuda {

struct Bfloat16 {
  uint16_t bits;
};

__device__ inline float from_bits(uint32_t bits) { return __uint_as_float(bits); }

__device__ inline uint32_t bfloat16_bits(float x) {  // to the nearest, ties to even
  const uint32_t bits = __float_as_uint(x);
  if (x != x) return 0x7fffu;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

__device__ inline void load8(const float* p, float (&x)[8]) {
  const float4 a = *reinterpret_cast<const float4*>(p), b = *reinterpret_cast<const float4*>(p + 4);
  x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

__device__ inline void load8(const Bfloat16* p, float (&x)[8]) {
  const uint4 raw = *reinterpret_cast<const uint4*>(p);
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = from_bits(words[i] << 16);
    x[2 * i + 1] = from_bits(words[i] & 0xffff0000u);
  }
}

__device__ inline void store8(float* p, const float (&x)[8]) {
  *reinterpret_cast<float4*>(p) = make_float4(x[0], x[1], x[2], x[3]);
  *reinterpret_cast<float4*>(p + 4) = make_float4(x[4], x[5], x[6], x[7]);
}

__device__ inline void store8(Bfloat16* p, const float (&x)[8]) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = bfloat16_bits(x[2 * i]) | (bfloat16_bits(x[2 * i + 1]) << 16);
  *reinterpret_cast<uint4*>(p) = make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ inline void load4(const float* p, float (&x)[4]) {
  const float4 a = *reinterpret_cast<const float4*>(p);
  x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
}

__device__ inline void load4(const Bfloat16* p, float (&x)[4]) {
  const uint2 raw = *reinterpret_cast<const uint2*>(p);
  x[0] = from_bits(raw.x << 16), x[1] = from_bits(raw.x & 0xffff0000u);
  x[2] = from_bits(raw.y << 16), x[3] = from_bits(raw.y & 0xffff0000u);
}

__device__ inline void store4(float* p, const float (&x)[4]) {
  *reinterpret_cast<float4*>(p) = make_float4(x[0], x[1], x[2], x[3]);
}

__device__ inline void store4(Bfloat16* p, const float (&x)[4]) {
  *reinterpret_cast<uint2*>(p) =
      make_uint2(bfloat16_bits(x[0]) | (bfloat16_bits(x[1]) << 16), bfloat16_bits(x[2]) | (bfloat16_bits(x[3]) << 16));
}

__device__ inline float load1(const float* p) { return *p; }
__device__ inline float load1(const Bfloat16* p) { return from_bits(static_cast<uint32_t>(p->bits) << 16); }
__device__ inline void store1(float* p, float x) { *p = x; }
__device__ inline void store1(Bfloat16* p, float x) { p->bits = static_cast<uint16_t>(bfloat16_bits(x)); }

// Over `lanes` neighbouring lanes, a power of two; every lane of the warp takes part and every lane gets its sum.
__device__ inline float lane_sum(float x, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

__device__ inline float lane_max(float x, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

// exp(−x) overflows to infinity for very negative x, which gives the right 0.
__device__ inline float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
__device__ inline float softplus(float x) { return fmaxf(x, 0.f) + log1pf(expf(-fabsf(x))); }

}  // namespace tandem::train::cuda
