// kernels/simd/vec.h: Vec, one register of f32 lanes, in the instruction set this file is being compiled for.
//
//   A `<op>_simd.inl` is one algorithm written over Vec; `<op>_{portable,neon,avx2,avx512}.cpp` include it and the file
//   suffix sets the compiler flags. What every instruction set provides (namespace tandem::simd, all always inlined):
//
//     Vec, Mask, Vec::kLanes                    16 (AVX-512), 8 (AVX2), 4 (NEON, portable)
//     load, store                               kLanes floats, any alignment
//     load_partial, store_partial(…, n)         the first n lanes, 0 <= n <= kLanes; others read as 0 and memory past
//                                               the n-th element is never touched
//     load_bf16, load_f16, load_i8 (+ _partial) widened exactly, subnormals, infinities and NaN included
//     zero, broadcast, + - * /, abs, copysign(magnitude, sign)
//     fma(a, b, c) = a·b + c                    one rounding, except portable: two (mul, then add)
//     min, max                                  x86 rule on every set: the SECOND operand if either is NaN
//     less, is_nan, select(mask, if_true, if_false)
//     sum, reduce_max                           over the lanes, in one fixed order (halves folded: i + i+n/2, …)
//     round_even, scale_pow2(x, n)              n integral, −252 ≤ n ≤ 254: x · 2^n, subnormal results included
//     round_to_bf16                             RNE to bf16, widened back; NaN stays NaN
//     sum4(x, out)                              out[i] = sum(x[i]) for four vectors, bitwise the same as sum; sum8,
//     sum16 likewise exponent_part(x)                          2^floor(log2|x|) of a normal x: its exponent field alone
//     decode_mxfp4_group(packed, scale, out)    16 bytes → 32 floats times an E8M0 scale, exact: first the 16 even
//     columns
//                                               (low nibbles), then the 16 odd ones; see kernels/simd/weight_rows.h
//
//   kernels/simd/vec_math.h adds exp, sigmoid, tanh, softplus. No FTZ/DAZ is assumed anywhere.
#pragma once

// The compiler's flags choose, and TANDEM_VEC_NEON, which the build gives to `_neon` files: every AArch64 has NEON. A
// file that chooses by a target pragma instead (the tests do) says which, because GCC 12's C++ front end does not
// define the macros of such a pragma.
#if defined(TANDEM_VEC_AVX512) || \
    (defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__))
#include "kernels/simd/vec_avx512.h"
#elif defined(TANDEM_VEC_AVX2) || (defined(__AVX2__) && defined(__FMA__) && defined(__F16C__))
#include "kernels/simd/vec_avx2.h"
#elif defined(TANDEM_VEC_NEON)
#include "kernels/simd/vec_neon.h"
#else
#include "kernels/simd/vec_portable.h"
#endif
