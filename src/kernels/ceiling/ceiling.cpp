#include "kernels/ceiling/ceiling.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "kernels/ceiling/ceiling_backends.h"
#include "kernels/kernel_table.h"

namespace tandem {
namespace {

constexpr int kPasses = 7;
constexpr int64_t kFmaRounds = 1'000'000;

struct Loops {
  float (*read_streams)(const float*, int64_t);
  float (*fma_chains)(int64_t);
  int lanes;
};

Loops loops_of(KernelBackend backend) {
  switch (backend) {
#if defined(__x86_64__)
    case KernelBackend::kAmx:
    case KernelBackend::kAvx512: return {avx512::read_streams, avx512::fma_chains, avx512::fma_lanes()};
    case KernelBackend::kAvx2: return {avx2::read_streams, avx2::fma_chains, avx2::fma_lanes()};
    case KernelBackend::kNeon:
#elif defined(__aarch64__)
    case KernelBackend::kNeon: return {neon::read_streams, neon::fma_chains, neon::fma_lanes()};
    case KernelBackend::kAvx2:
    case KernelBackend::kAvx512:
    case KernelBackend::kAmx:
#else
    case KernelBackend::kNeon:
    case KernelBackend::kAvx2:
    case KernelBackend::kAvx512:
    case KernelBackend::kAmx:
#endif
    case KernelBackend::kRef:
    case KernelBackend::kPortable: break;
  }
  return {portable::read_streams, portable::fma_chains, portable::fma_lanes()};
}

// Median seconds of one pass after a first, untimed one.
double median_seconds(FunctionRef<void()> pass) {
  pass();
  std::vector<double> seconds;
  for (int i = 0; i < kPasses; ++i) {
    const auto start = std::chrono::steady_clock::now();
    pass();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + kPasses / 2, seconds.end());
  return seconds[kPasses / 2];
}

}  // namespace

MachineCeilings measure_ceilings(const ExecContext& ctx, size_t buffer_bytes) {
  const Loops loops = loops_of(ctx.kernels.backend);
  const int64_t threads = ctx.pool.num_threads();
  std::atomic<float> sink{0.f};  // keeps the loops' results alive
  MachineCeilings ceilings;

  const double fma_seconds = median_seconds(
      [&] { ctx.pool.parallel_for(threads, [&](int64_t, int) { sink.store(loops.fma_chains(kFmaRounds)); }); });
  ceilings.f32_gflop_s = 2.0 * static_cast<double>(threads * kFmaRounds * kFmaChains * loops.lanes) / fma_seconds / 1e9;

  constexpr int64_t kGrain = kReadStreams * 16;  // floats
  const int64_t per_thread = static_cast<int64_t>(buffer_bytes / sizeof(float)) / threads / kGrain * kGrain;
  const auto mapped_bytes = static_cast<size_t>(per_thread * threads) * sizeof(float);
  void* memory = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return ceilings;
  madvise(memory, mapped_bytes, MADV_HUGEPAGE);
  auto* data = static_cast<float*>(memory);
  ctx.pool.parallel_for(threads, [&](int64_t t, int) { std::fill_n(data + t * per_thread, per_thread, 1.f); });
  const double read_seconds = median_seconds([&] {
    ctx.pool.parallel_for(threads,
                          [&](int64_t t, int) { sink.store(loops.read_streams(data + t * per_thread, per_thread)); });
  });
  munmap(memory, mapped_bytes);
  ceilings.read_gb_s = static_cast<double>(mapped_bytes) / read_seconds / 1e9;
  return ceilings;
}

}  // namespace tandem
