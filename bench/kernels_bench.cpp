// bench/kernels_bench.cpp: the dense operators at the shapes of k3-mini, one JSON line a case and backend, against the
// read bandwidth and f32 peak measured in the same run.
//
//   kernels_bench [THREADS]      (default: all)
//   Decode cases walk a pool of different matrices much larger than the caches near a core, as the layers of a model
//   do.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/cat.h"
#include "kernels/ceiling/ceiling.h"
#include "kernels/kernel_table.h"

namespace tandem {
namespace {

struct Machine {
  MachineCeilings ceilings;
  std::string backend;
  int threads = 1;
};

struct Timing {
  double median_s, min_s, max_s;
};

template <class Body>
Timing measure(const Body& body) {
  body();  // warm the caches, the arena and the threads
  std::vector<double> seconds;
  const auto begin = std::chrono::steady_clock::now();
  while (seconds.size() < 7 ||
         (seconds.size() < 400 && std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(400))) {
    const auto start = std::chrono::steady_clock::now();
    body();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds.front(), seconds.back()};
}

void print_case(const Machine& m, const std::string& op, const std::string& shape, const Timing& t, double bytes,
                double flops) {
  const double gb_s = bytes / t.median_s * 1e-9;
  const double gflop_s = flops / t.median_s * 1e-9;
  std::printf(
      "{\"bench\":\"kernels\",\"op\":\"%s\",\"backend\":\"%s\",\"threads\":%d,\"shape\":\"%s\",\"median_us\":%.1f,"
      "\"min_us\":%.1f,"
      "\"max_us\":%.1f,\"gb_s\":%.2f,\"gflop_s\":%.1f,\"read_peak_pct\":%.1f,\"f32_peak_pct\":%.1f}\n",
      op.c_str(), m.backend.c_str(), m.threads, shape.c_str(), t.median_s * 1e6, t.min_s * 1e6, t.max_s * 1e6, gb_s,
      gflop_s, 100 * gb_s / m.ceilings.read_gb_s, 100 * gflop_s / m.ceilings.f32_gflop_s);
  std::fflush(stdout);
}

const char* format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32: return "f32";
    case WeightFormat::kF16: return "f16";
    case WeightFormat::kBF16: return "bf16";
    case WeightFormat::kMxfp4: return "mxfp4";
    case WeightFormat::kInt8: return "int8";
  }
  return "?";
}

// `count` matrices of one shape in one buffer, bf16, int8 or MXFP4.
class WeightPool {
 public:
  WeightPool(WeightFormat format, int64_t rows, int64_t cols, int64_t count) {
    WeightView one;
    one.rows = rows;
    one.cols = cols;
    one.format = format;
    const int64_t bytes = rows * one.row_bytes();
    data_.resize(static_cast<size_t>(bytes * count) / 8 + 1);
    scale_.assign(static_cast<size_t>(rows * one.scale_row_bytes() * count), format == WeightFormat::kInt8 ? 60 : 120);
    std::mt19937_64 engine(1);
    // bf16 of either sign in [0.5, 2): subnormals would measure the microcode instead.
    const bool plain = format != WeightFormat::kBF16;
    for (uint64_t& word : data_) {
      word = plain ? engine() : (engine() & 0x80ff80ff80ff80ffu) | 0x3f003f003f003f00u;
    }
    for (int64_t i = 0; i < count; ++i) {
      one.data = reinterpret_cast<const std::byte*>(data_.data()) + i * bytes;
      one.scale = scale_.empty() ? nullptr : scale_.data() + i * rows * one.scale_row_bytes();
      views_.push_back(one);
    }
  }
  const std::vector<WeightView>& views() const { return views_; }

 private:
  std::vector<uint64_t> data_;
  std::vector<uint8_t> scale_;
  std::vector<WeightView> views_;
};

std::vector<float> random_floats(int64_t count) {
  std::mt19937 engine(2);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal(engine);
  return values;
}

void check(const Status& status) {
  if (status.is_ok()) return;
  std::fprintf(stderr, "kernels_bench: %s\n", status.message().c_str());
  std::exit(1);
}

void bench_linear(const ExecContext& ctx, const Machine& m, WeightFormat format, int64_t T, int64_t in, int64_t out,
                  const WeightPool& pool) {
  const std::vector<float> x = random_floats(T * in);
  std::vector<float> y(static_cast<size_t>(T * out));
  size_t next = 0;
  const auto step = [&] {
    const WeightView& weight = pool.views()[next++ % pool.views().size()];
    const LinearOutput output{weight, MatrixView<float>::contiguous(y.data(), {T, out})};
    check(linear(ctx, {MatrixView<const float>::contiguous(x.data(), {T, in}), {&output, 1}}));
  };
  const WeightView& weight = pool.views()[0];
  const auto work = static_cast<double>(T * in * out);
  print_case(m, cat("linear_", format_name(format)), cat("T", T, "_in", in, "_out", out), measure(step),
             static_cast<double>(weight.total_bytes()), 2 * work);
}

void bench_experts(const ExecContext& ctx, const Machine& m, int64_t T, const WeightPool& up, const WeightPool& down) {
  constexpr int64_t kExperts = 64, kTopK = 8, kWidth = 512;
  std::mt19937 engine(3);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < T; ++t) {
    std::vector<int32_t> all(kExperts);
    for (int32_t e = 0; e < kExperts; ++e) all[static_cast<size_t>(e)] = e;
    std::shuffle(all.begin(), all.end(), engine);
    std::sort(all.begin(), all.begin() + kTopK);
    ids.insert(ids.end(), all.begin(), all.begin() + kTopK);
  }
  std::vector<bool> used(kExperts);
  for (const int32_t id : ids) used[static_cast<size_t>(id)] = true;
  const std::vector<float> weights(static_cast<size_t>(T * kTopK), 0.125f);
  const std::vector<float> z = random_floats(T * kWidth);
  std::vector<float> out(static_cast<size_t>(T * kWidth));
  std::vector<ExpertWeights> experts;
  const int64_t layers = static_cast<int64_t>(down.views().size()) / kExperts;
  for (int64_t e = 0; e < kExperts * layers; ++e)
    experts.push_back({up.views()[2 * e], up.views()[2 * e + 1], down.views()[e]});
  int64_t layer = 0;
  const auto step = [&] {
    MoeExpertsArgs args;
    args.z = MatrixView<const float>::contiguous(z.data(), {T, kWidth});
    args.topk_ids = MatrixView<const int32_t>::contiguous(ids.data(), {T, kTopK});
    args.topk_weights = MatrixView<const float>::contiguous(weights.data(), {T, kTopK});
    args.experts = std::span(experts).subspan(static_cast<size_t>(layer * kExperts), kExperts);
    args.act = {GatedAct::kSitu, 4.f, 25.f};
    args.out = MatrixView<float>::contiguous(out.data(), {T, kWidth});
    check(moe_experts(ctx, args));
    layer = (layer + 1) % layers;
  };
  const auto active = static_cast<double>(std::count(used.begin(), used.end(), true));
  const double expert_bytes = 3.0 * static_cast<double>(down.views()[0].total_bytes());
  print_case(m, "moe_experts_mxfp4", cat("T", T, "_k8_E64_Dl512_I512"), measure(step), active * expert_bytes,
             2.0 * 3.0 * static_cast<double>(T * kTopK * kWidth * kWidth));
}

void bench_rows(const ExecContext& ctx, const Machine& m, int64_t T) {
  constexpr int64_t kWidth = 1024;
  const std::vector<float> x = random_floats(T * kWidth);
  std::vector<float> out(x.size());
  const std::vector<float> weight(kWidth, 1.f);
  const auto in_view = MatrixView<const float>::contiguous(x.data(), {T, kWidth});
  const auto out_view = MatrixView<float>::contiguous(out.data(), {T, kWidth});
  const std::string shape = cat("T", T, "_D1024");
  const auto elements = static_cast<double>(T * kWidth);
  print_case(
      m, "rms_norm", shape, measure([&] {
        check(rms_norm(ctx, {in_view, VectorView<const float>::contiguous(weight.data(), {kWidth}), 1e-5f, out_view}));
      }),
      8 * elements, 4 * elements);
  print_case(m, "gated_act_situ", shape, measure([&] {
               check(gated_act(ctx, {in_view, in_view, {GatedAct::kSitu, 4.f, 25.f}, out_view}));
             }),
             8 * elements, 0);
  const std::vector<MatrixView<const float>> sources(5, in_view);
  print_case(m, "attn_res_mix_n5", shape, measure([&] {
               check(attn_res_mix(
                   ctx, {sources, VectorView<const float>::contiguous(weight.data(), {kWidth}), 1e-5f, out_view}));
             }),
             4 * 6 * elements, 6 * 5 * elements);
}

int run(int threads) {
  const WeightPool bf16(WeightFormat::kBF16, 4096, 1024, 64);  // 512 MiB
  const WeightPool mxfp4(WeightFormat::kMxfp4, 4096, 1024, 64);
  const WeightPool int8(WeightFormat::kInt8, 4096, 1024, 64);
  const WeightPool up(WeightFormat::kMxfp4, 512, 512, 2 * 64 * 16);  // 16 layers of 64 experts
  const WeightPool down(WeightFormat::kMxfp4, 512, 512, 64 * 16);
  for (const KernelBackend backend : available_backends(detect_cpu_features())) {
    if (backend == KernelBackend::kRef) continue;  // the reference is not meant to be fast
    const KernelTable table = make_kernel_table(detect_cpu_features(), backend).value();
    ThreadPool pool(threads);
    Arena arena;
    const ExecContext ctx{pool, arena, table};
    const Machine m{measure_ceilings(ctx), std::string(kernel_backend_name(backend)), threads};
    std::printf("{\"bench\":\"ceilings\",\"backend\":\"%s\",\"threads\":%d,\"read_gb_s\":%.2f,\"f32_gflop_s\":%.1f}\n",
                m.backend.c_str(), threads, m.ceilings.read_gb_s, m.ceilings.f32_gflop_s);
    for (const int64_t T : {1, 4, 16, 64, 512}) {
      bench_linear(ctx, m, WeightFormat::kBF16, T, 1024, 4096, bf16);
      bench_linear(ctx, m, WeightFormat::kInt8, T, 1024, 4096, int8);
      bench_linear(ctx, m, WeightFormat::kMxfp4, T, 1024, 4096, mxfp4);
    }
    for (const int64_t T : {1, 8, 512}) bench_experts(ctx, m, T, up, down);
    for (const int64_t T : {1, 512}) bench_rows(ctx, m, T);
  }
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : static_cast<int>(std::thread::hardware_concurrency());
  if (threads < 1) {
    std::fprintf(stderr, "usage: kernels_bench [THREADS >= 1]\n");
    return 2;
  }
  return tandem::run(threads);
}
