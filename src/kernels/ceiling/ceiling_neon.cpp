#include "kernels/ceiling/ceiling_simd.inl"

namespace tandem::neon {

float read_streams(const float* data, int64_t count) { return read_streams_simd(data, count); }
float fma_chains(int64_t rounds) { return fma_chains_simd(rounds); }
int fma_lanes() { return simd::Vec::kLanes; }

}  // namespace tandem::neon
