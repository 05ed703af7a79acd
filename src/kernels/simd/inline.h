// kernels/simd/inline.h: TANDEM_INLINE, for every helper that files of different instruction sets share.
//
// An ordinary inline function or template compiled in an _avx512.cpp may be the copy the linker keeps for the whole
// program, and then crashes an older CPU. Shared helpers are therefore always inlined and live in an anonymous
// namespace; tools/check_isa.sh proves with nm that nothing else leaked.
#pragma once

#define TANDEM_INLINE [[gnu::always_inline]] inline
