// Opening a checkpoint of 500,000 tensors by its index and headers alone (goal: below 2 s and below 110 MB beyond the
// mapping), in 96 shards and in one file, names as long as K3's. Data sections are sparse. Counters:
//   peak_mb  most anonymous memory during an open, above that before it (mapped file pages do not count)
//   kept_mb  anonymous memory that the open checkpoint holds
#include <benchmark/benchmark.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/cat.h"
#include "weights/atomic_file.h"
#include "weights/checkpoint.h"
#include "weights/safetensors_writer.h"
#include "weights/shard_index.h"
#include "weights/shard_plan.h"
#include "weights/tensor_table.h"

namespace {

using namespace tandem;

constexpr int64_t kNumTensors = 500'000;
constexpr int64_t kExperts = 896;
constexpr uint64_t kCodesBytes = 3072 * 1792;
constexpr uint64_t kScaleBytes = 3072 * 112;

void require(const Status& status) {
  if (status.is_ok()) return;
  std::fprintf(stderr, "index_bench: %s\n", status.message().c_str());
  std::exit(1);
}

// A folder of sparse shards with the names of K3's routed experts, removed at the end.
class SparseCheckpoint {
 public:
  explicit SparseCheckpoint(int64_t num_shards) {
    std::string pattern = (std::filesystem::temp_directory_path() / "tandem-index-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) require(Status::io("cannot make a temporary folder"));
    dir_ = pattern;
    TensorTable tensors;
    for (int64_t i = 0; i < kNumTensors; ++i) {
      const bool codes = i % 2 == 0;
      const std::array<int64_t, 2> shape = {3072, codes ? 1792 : 112};
      tensors.add(cat("language_model.model.layers.", i / (kExperts * 6), ".block_sparse_moe.experts.",
                      i / 6 % kExperts, ".w", 1 + i / 2 % 3, codes ? ".weight_packed" : ".weight_scale"),
                  DType::kU8, shape, 0, 0);
    }
    const uint64_t total = kNumTensors / 2 * (kCodesBytes + kScaleBytes);
    const auto shards = plan_shards(tensors, total / static_cast<uint64_t>(num_shards) + kCodesBytes);
    for (const PlannedShard& shard : shards) write_shard(tensors, shard);
    require(write_file_atomic(cat(dir_, "/", kIndexFileName), shard_index_json(tensors, shards)));
  }
  ~SparseCheckpoint() {
    std::error_code ignored;
    std::filesystem::remove_all(dir_, ignored);
  }
  const std::string& dir() const { return dir_; }

 private:
  void write_shard(const TensorTable& tensors, const PlannedShard& shard) const {
    std::vector<TensorSpec> specs;
    for (int64_t i = shard.first; i < shard.first + shard.count; ++i) {
      const TensorEntry entry = tensors.entry(i);
      specs.push_back({entry.name, entry.dtype, entry.shape});
    }
    const auto layout = layout_safetensors(specs);
    require(layout.status());
    auto file = AtomicFile::create(cat(dir_, "/", shard.name));
    require(file.status());
    require(file.value().resize(layout.value().file_bytes));
    require(file.value().write_at(0, std::as_bytes(std::span(layout.value().front))));
    require(file.value().publish());
  }

  std::string dir_;
};

int64_t anonymous_bytes() {
  long long total = 0;
  long long resident = 0;
  long long shared = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  const int read = std::fscanf(file, "%lld %lld %lld", &total, &resident, &shared);
  std::fclose(file);
  return read == 3 ? (resident - shared) * ::sysconf(_SC_PAGESIZE) : 0;
}

// Looks at this process's memory every half millisecond.
class PeakSampler {
 public:
  PeakSampler() : base_(anonymous_bytes()), thread_([this] { run(); }) {}
  ~PeakSampler() {
    stop_ = true;
    thread_.join();
  }
  int64_t peak_bytes() const { return peak_; }
  int64_t base_bytes() const { return base_; }

 private:
  void run() {
    while (!stop_) {
      peak_ = std::max(peak_.load(), anonymous_bytes() - base_);
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  }
  const int64_t base_;
  std::atomic<int64_t> peak_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

void BM_OpenIndex(benchmark::State& state) {
  const SparseCheckpoint files(state.range(0));
  int64_t peak = 0;
  int64_t kept = 0;
  for (auto iteration : state) {
    (void)iteration;
    ::malloc_trim(0);  // what earlier work freed would hide what this takes
    const PeakSampler sampler;
    const auto opened = Checkpoint::open(files.dir(), Checkpoint::Mode::kHeadersOnly);
    require(opened.status());
    if (opened.value().num_tensors() != kNumTensors) require(Status::invalid("a tensor was lost"));
    kept = std::max(kept, anonymous_bytes() - sampler.base_bytes());
    peak = std::max(peak, sampler.peak_bytes());
  }
  state.counters["peak_mb"] = static_cast<double>(peak) * 1e-6;
  state.counters["kept_mb"] = static_cast<double>(kept) * 1e-6;
}
BENCHMARK(BM_OpenIndex)
    ->ArgName("shards")
    ->Arg(96)
    ->Arg(1)
    ->Iterations(5)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
