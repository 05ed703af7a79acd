// The avx2 table of simd_functions.h, compiled for its set by a target pragma. The standard headers come before it, so
// that none of their inlines is compiled for this set.
#include <atomic>
#include <bit>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/exec_context.h"
#include "kernels/simd_functions.h"
#include "tensor/weight_view.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TANDEM_VEC_AVX2
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi2")
#include "kernels/simd_functions.inl"
namespace tandem::test {
SimdFunctions avx2_simd() { return functions_of_this_set("avx2"); }
}  // namespace tandem::test
#pragma GCC pop_options
#else
namespace tandem::test {
SimdFunctions avx2_simd() { return {}; }
}  // namespace tandem::test
#endif
