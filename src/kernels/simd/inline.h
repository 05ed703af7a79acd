// kernels/simd/inline.h: TANDEM_INLINE, for every helper that files of different instruction sets share.
//
// An ordinary inline function or template compiled in an _avx512.cpp may be the copy the linker keeps for the whole
// program, and then crashes an older CPU. Shared helpers are therefore always inlined and live in an anonymous
// namespace; tools/check_isa.sh proves with nm that nothing else leaked.
#pragma once

#define TANDEM_INLINE [[gnu::always_inline]] inline

// Before a loop over a register array: unrolled early, so that the array never lies in memory (left to itself, g++ 12
// spills and reloads every accumulator of a large tile before and after its inner loop).
#if defined(__clang__)
#define TANDEM_UNROLL _Pragma("unroll")
#else
#define TANDEM_UNROLL _Pragma("GCC unroll 16")
#endif
