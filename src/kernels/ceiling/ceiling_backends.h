// kernels/ceiling/ceiling_backends.h: the two measured loops, one build for each instruction set.
#pragma once

#include <cstdint>

namespace tandem {

inline constexpr int64_t kReadStreams = 8;
inline constexpr int64_t kFmaChains = 12;

namespace portable {
float read_streams(const float* data, int64_t count);  // count: a multiple of 8 streams of 16 lanes
float fma_chains(int64_t rounds);
int fma_lanes();
}  // namespace portable
namespace neon {
float read_streams(const float* data, int64_t count);
float fma_chains(int64_t rounds);
int fma_lanes();
}  // namespace neon
namespace avx2 {
float read_streams(const float* data, int64_t count);
float fma_chains(int64_t rounds);
int fma_lanes();
}  // namespace avx2
namespace avx512 {
float read_streams(const float* data, int64_t count);
float fma_chains(int64_t rounds);
int fma_lanes();
}  // namespace avx512

}  // namespace tandem
