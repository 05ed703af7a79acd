// Fork-join latency of base/thread_pool.h beside OpenMP and oneTBB (each when the toolchain has it): loops of a few
// tiny tasks, where the hand-over is all there is, and of 20 µs tasks, where balance counts. docs/adr/0005-threads.md.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/thread_pool.h"

#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef TANDEM_BENCH_TBB
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#endif

namespace {

int num_threads() {
  const unsigned cores = std::thread::hardware_concurrency();
  return cores == 0 ? 1 : static_cast<int>(cores);
}

// A task writes a cache line of its own and computes for about `nanoseconds`.
struct alignas(64) Slot {
  uint64_t value = 1;
};

uint64_t spin_steps(uint64_t value, int64_t steps) {
  for (int64_t i = 0; i < steps; ++i) value = value * 6364136223846793005u + 1442695040888963407u;
  return value;
}

// Steps of spin_steps that take `nanoseconds` on this machine.
int64_t steps_for(int64_t nanoseconds) {
  if (nanoseconds == 0) return 1;
  constexpr int64_t kProbe = 20'000'000;
  const auto begin = std::chrono::steady_clock::now();
  benchmark::DoNotOptimize(spin_steps(1, kProbe));
  const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
  return static_cast<int64_t>(static_cast<double>(nanoseconds) * static_cast<double>(kProbe) / taken.count());
}

struct Work {
  explicit Work(const benchmark::State& state)
      : num_tasks(state.range(0)), steps(steps_for(state.range(1))), slots(static_cast<size_t>(num_tasks)) {}
  void operator()(int64_t task) {
    Slot& slot = slots[static_cast<size_t>(task)];
    slot.value = spin_steps(slot.value, steps);
  }
  int64_t num_tasks;
  int64_t steps;
  std::vector<Slot> slots;
};

void BM_Serial(benchmark::State& state) {
  Work work(state);
  for (auto _ : state) {
    for (int64_t task = 0; task < work.num_tasks; ++task) work(task);
    benchmark::ClobberMemory();
  }
}

void BM_ThreadPool(benchmark::State& state) {
  tandem::ThreadPool pool(num_threads());
  Work work(state);
  for (auto _ : state) pool.parallel_for(work.num_tasks, [&](int64_t task, int) { work(task); });
}

#ifdef _OPENMP
void BM_OpenMpDynamic(benchmark::State& state) {
  Work work(state);
  for (auto _ : state) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(num_threads())
    for (int64_t task = 0; task < work.num_tasks; ++task) work(task);
  }
}

void BM_OpenMpStatic(benchmark::State& state) {
  Work work(state);
  for (auto _ : state) {
#pragma omp parallel for schedule(static) num_threads(num_threads())
    for (int64_t task = 0; task < work.num_tasks; ++task) work(task);
  }
}
#endif

#ifdef TANDEM_BENCH_TBB
void BM_OneTbb(benchmark::State& state) {
  tbb::task_arena arena(num_threads());
  Work work(state);
  for (auto _ : state) {
    arena.execute([&] {
      tbb::parallel_for(
          tbb::blocked_range<int64_t>(0, work.num_tasks, 1),
          [&](const tbb::blocked_range<int64_t>& range) {
            for (int64_t task = range.begin(); task < range.end(); ++task) work(task);
          },
          tbb::simple_partitioner());
    });
  }
}
#endif

// {tasks, nanoseconds of one task}
void cases(benchmark::internal::Benchmark* bench) {
  for (const int64_t tasks : {2, 16, 256}) bench->Args({tasks, 0});
  bench->Args({2, 20000})->Args({16, 20000});
  bench->ArgNames({"tasks", "ns"})->UseRealTime()->Unit(benchmark::kMicrosecond);
}

BENCHMARK(BM_Serial)->Apply(cases);
BENCHMARK(BM_ThreadPool)->Apply(cases);
#ifdef _OPENMP
BENCHMARK(BM_OpenMpDynamic)->Apply(cases);
BENCHMARK(BM_OpenMpStatic)->Apply(cases);
#endif
#ifdef TANDEM_BENCH_TBB
BENCHMARK(BM_OneTbb)->Apply(cases);
#endif

}  // namespace

BENCHMARK_MAIN();
