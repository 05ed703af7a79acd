// kernels/ceiling/ceiling_simd.inl: the loops of ceiling.h over Vec.
#include "kernels/ceiling/ceiling_backends.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

float read_streams_simd(const float* data, int64_t count) {
  const int64_t per_stream = count / kReadStreams;
  Vec sums[kReadStreams];
  for (auto& s : sums) s = zero();
  for (int64_t i = 0; i < per_stream; i += 16) {
#pragma GCC unroll 8
    for (int64_t stream = 0; stream < kReadStreams; ++stream) {
      const float* p = data + stream * per_stream + i;
      __builtin_prefetch(p + 256);
      for (int64_t lane = 0; lane < 16; lane += Vec::kLanes) sums[stream] = sums[stream] + load(p + lane);
    }
  }
  float total = 0.f;
  for (const auto& s : sums) total += sum(s);
  return total;
}

float fma_chains_simd(int64_t rounds) {
  Vec chains[kFmaChains];
  for (auto& c : chains) c = broadcast(1e-3f);
  const Vec factor = broadcast(0.999f);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (auto& c : chains) c = fma(c, factor, factor);
  }
  float total = 0.f;
  for (const auto& c : chains) total += sum(c);
  return total;
}

}  // namespace
}  // namespace tandem
