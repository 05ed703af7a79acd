// tests/kernels/simd_functions.h: the SIMD layer of one instruction set as plain functions over arrays, so that one
// test text can hold every set against double precision. Each table is filled in a file compiled for its set.
#pragma once

#include <cstdint>

namespace tandem::test {

struct SimdFunctions {
  const char* name;
  int lanes;
  void (*exp)(const float* x, int64_t n, float* out);
  void (*sigmoid)(const float* x, int64_t n, float* out);
  void (*tanh)(const float* x, int64_t n, float* out);
  void (*softplus)(const float* x, int64_t n, float* out);
  void (*round_even)(const float* x, int64_t n, float* out);
  void (*round_to_bf16)(const float* x, int64_t n, float* out);
  void (*widen_bf16)(const uint16_t* x, int64_t n, float* out);
  void (*widen_f16)(const uint16_t* x, int64_t n, float* out);
  void (*mxfp8_round)(const float* x, int64_t n, float* out);
  void (*decode_mxfp4)(const uint8_t* packed, uint8_t scale, float* out32);  // even columns, then odd
  float (*e8m0)(uint8_t e);
  void (*sums)(const float* four_vectors, float* sum_out4, float* sum4_out4);
  void (*many_sums)(const float* sixteen_vectors, float* sum_out16, float* sum8_out8, float* sum16_out16);
  void (*extrema)(const float* a, const float* b, int64_t n, float* min_out, float* max_out);
};

SimdFunctions portable_simd();
// name is null where the test program was compiled without this set (a compiler other than GCC, another CPU family).
SimdFunctions avx2_simd();
SimdFunctions avx512_simd();

}  // namespace tandem::test
