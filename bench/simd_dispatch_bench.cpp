// bench/simd_dispatch_bench.cpp: the same kernel (dot products of bf16 rows with an f32 vector, eight rows in flight)
// over our kernels/simd/ wrapper and over Google Highway: the numbers behind the decision on SIMD dispatch.
//
//   One JSON line a variant and size, one thread, the two variants interleaved. Ours goes through the kernel table,
//   with its validation and task hand-out; Highway's is called directly, so it has the advantage of a bare loop. The
//   small size stays in L2 and shows the code, the large one streams from memory.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "kernels/kernel_table.h"

#if defined(__x86_64__) && __has_include(<hwy/highway.h>)
#define TANDEM_BENCH_HIGHWAY 1
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../bench/simd_dispatch_bench.cpp"  // found through the include path src/
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tandem::bench_highway {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// y[r] = Σ_k w[r][k] x[k]; rows % 8 == 0 and cols a multiple of the lanes.
HWY_ATTR void dot_rows(const uint16_t* w, const float* x, int64_t rows, int64_t cols, float* y) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<hwy::bfloat16_t, decltype(d)> half;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t row = 0; row < rows; row += 8) {
    const auto* base = reinterpret_cast<const hwy::bfloat16_t*>(w + row * cols);
    auto a0 = hn::Zero(d), a1 = hn::Zero(d), a2 = hn::Zero(d), a3 = hn::Zero(d);
    auto a4 = hn::Zero(d), a5 = hn::Zero(d), a6 = hn::Zero(d), a7 = hn::Zero(d);
    for (int64_t k = 0; k < cols; k += lanes) {
      const auto v = hn::LoadU(d, x + k);
      const auto at = [&](int64_t r) HWY_ATTR {
        __builtin_prefetch(base + (8 + r) * cols + k);
        return hn::PromoteTo(d, hn::LoadU(half, base + r * cols + k));
      };
      a0 = hn::MulAdd(at(0), v, a0);
      a1 = hn::MulAdd(at(1), v, a1);
      a2 = hn::MulAdd(at(2), v, a2);
      a3 = hn::MulAdd(at(3), v, a3);
      a4 = hn::MulAdd(at(4), v, a4);
      a5 = hn::MulAdd(at(5), v, a5);
      a6 = hn::MulAdd(at(6), v, a6);
      a7 = hn::MulAdd(at(7), v, a7);
    }
    y[row + 0] = hn::GetLane(hn::SumOfLanes(d, a0));
    y[row + 1] = hn::GetLane(hn::SumOfLanes(d, a1));
    y[row + 2] = hn::GetLane(hn::SumOfLanes(d, a2));
    y[row + 3] = hn::GetLane(hn::SumOfLanes(d, a3));
    y[row + 4] = hn::GetLane(hn::SumOfLanes(d, a4));
    y[row + 5] = hn::GetLane(hn::SumOfLanes(d, a5));
    y[row + 6] = hn::GetLane(hn::SumOfLanes(d, a6));
    y[row + 7] = hn::GetLane(hn::SumOfLanes(d, a7));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::bench_highway
HWY_AFTER_NAMESPACE();
#endif

#if !defined(TANDEM_BENCH_HIGHWAY) || HWY_ONCE
namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;
using DotRows = void (*)(const uint16_t*, const float*, int64_t, int64_t, float*);

DotRows highway_of(KernelBackend backend) {
#if defined(TANDEM_BENCH_HIGHWAY)
  if (backend == KernelBackend::kAvx512) return &bench_highway::N_AVX3::dot_rows;
  if (backend == KernelBackend::kAvx2) return &bench_highway::N_AVX2::dot_rows;
#endif
  (void)backend;
  return nullptr;
}

double median(std::vector<double>& seconds) {
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

void report(const char* variant, KernelBackend backend, int64_t rows, int64_t cols, std::vector<double>& seconds) {
  const double m = median(seconds);
  std::printf(
      "{\"bench\":\"simd_dispatch\",\"variant\":\"%s\",\"set\":\"%s\",\"rows\":%ld,\"cols\":%ld,\"median_us\":%.2f,"
      "\"min_us\":%.2f,\"p90_us\":%.2f,\"gb_s\":%.2f}\n",
      variant, std::string(kernel_backend_name(backend)).c_str(), static_cast<long>(rows), static_cast<long>(cols),
      m * 1e6, seconds.front() * 1e6, seconds[seconds.size() * 9 / 10] * 1e6,
      static_cast<double>(rows * cols * 2) / m * 1e-9);
}

void compare(KernelBackend backend, int64_t rows, int64_t cols, int64_t matrices, int rounds) {
  const DotRows highway = highway_of(backend);
  if (highway == nullptr) {
    std::fprintf(stderr, "SKIP: no Highway variant of %s\n", std::string(kernel_backend_name(backend)).c_str());
    return;
  }
  std::vector<uint16_t> weights(static_cast<size_t>(rows * cols * matrices));
  std::mt19937 engine(1);
  for (uint16_t& w : weights) w = static_cast<uint16_t>((engine() & 0x80ffu) | 0x3f00u);  // ±[0.5, 2)
  const std::vector<float> x(static_cast<size_t>(cols), 0.5f);
  std::vector<float> ours(static_cast<size_t>(rows)), theirs(ours.size());
  const KernelTable table = make_kernel_table(detect_cpu_features(), backend).value();
  ThreadPool pool(1);
  Arena arena;
  const ExecContext ctx{pool, arena, table};
  std::vector<double> our_seconds, their_seconds;
  for (int round = 0; round < rounds; ++round) {
    const uint16_t* w = weights.data() + (round % matrices) * rows * cols;
    WeightView view;
    view.data = w;
    view.rows = rows;
    view.cols = cols;
    const LinearOutput output{view, MatrixView<float>::contiguous(ours.data(), {1, rows})};
    for (const bool first : {round % 2 == 0, round % 2 != 0}) {  // the order alternates
      const auto start = Clock::now();
      if (first) {
        if (!linear(ctx, {MatrixView<const float>::contiguous(x.data(), {1, cols}), {&output, 1}}).is_ok()) return;
      } else {
        highway(w, x.data(), rows, cols, theirs.data());
      }
      (first ? our_seconds : their_seconds).push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    if (ours != theirs) {
      // Both fold a register by halves, so they agree bitwise; a difference would mean different work.
      for (size_t i = 0; i < ours.size(); ++i) {
        if (std::abs(ours[i] - theirs[i]) > 1e-3f)
          std::fprintf(stderr, "row %zu: %g and %g\n", i, static_cast<double>(ours[i]), static_cast<double>(theirs[i]));
      }
    }
  }
  report("tandem", backend, rows, cols, our_seconds);
  report("highway", backend, rows, cols, their_seconds);
}

}  // namespace
}  // namespace tandem

int main() {
#if !defined(TANDEM_BENCH_HIGHWAY)
  std::fprintf(stderr, "SKIP: built without Highway (libhwy-dev): nothing to compare with\n");
#endif
  for (const tandem::KernelBackend backend : tandem::available_backends(tandem::detect_cpu_features())) {
    if (backend == tandem::KernelBackend::kRef || backend == tandem::KernelBackend::kPortable) continue;
    tandem::compare(backend, 512, 1024, 1, 4001);   // 1 MiB: L2
    tandem::compare(backend, 4096, 1024, 64, 401);  // 8 MiB of 512
  }
  return 0;
}
#endif
