// The sequence mixers of one layer: KDA decode (fused and in parts) and prefill, short convolution, MLA decode and
// prefill, for every backend of this machine. One JSON line a case: median, fastest and slowest of the repeats, GB/s
// and GFLOP/s of the necessary work, and their share of the ceilings measured in the same run.
//
//   mixer_bench [--threads N] [--kernels ref|portable|avx2|avx512] [--only SUBSTRING] [--repeat N]
//
// Shapes: mini = k3-mini (16 heads, K = V = 64; MLA rank 256, 64/64/64), k3 = Kimi K3 (96 heads, K = V = 128; MLA rank
// 512, 128/64/128).
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/ceiling/ceiling.h"
#include "kernels/kernel_table.h"

namespace tandem {
namespace {

struct Options {
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::string kernels;
  std::string only;
  int repeat = 9;
};

// Floats in an arena of their own, as a step's activations are.
class Floats {
 public:
  Floats(int64_t count, float low, float high) : values_(arena_.alloc<float>(count)) {
    uint64_t x = 1;
    for (float& v : values_) {
      x = x * 6364136223846793005u + 1442695040888963407u;
      v = low + (high - low) * static_cast<float>(x >> 40) * 0x1p-24f;
    }
  }
  explicit Floats(int64_t count) : Floats(count, 0.f, 0.f) {}
  float* data() { return values_.data(); }
  const float* data() const { return values_.data(); }

 private:
  Arena arena_;
  std::span<float> values_;
};

class Bench {
 public:
  Bench(const Options& options, KernelTable table)
      : options_(options),
        pool_(options.threads),
        table_(table),
        ctx_{pool_, arena_, table_},
        ceilings_(measure_ceilings(ctx_, size_t{256} << 20)) {}

  const ExecContext& ctx() const { return ctx_; }
  bool wants(const std::string& name) const { return name.find(options_.only) != std::string::npos; }
  bool is_ref() const { return table_.backend == KernelBackend::kRef; }

  // `bytes` and `flops` are what the operator cannot do without.
  void run(const std::string& name, double bytes, double flops, const std::function<Status()>& body) {
    using Clock = std::chrono::steady_clock;
    std::vector<double> seconds;
    std::vector<double> cpu_seconds;
    for (int i = 0; i < options_.repeat; ++i) {
      int calls = 0;
      const auto begin = Clock::now();
      const std::clock_t cpu_begin = std::clock();
      std::chrono::duration<double> taken{};
      do {  // at least 20 ms a repeat
        if (const Status status = body(); !status.is_ok()) {
          std::fprintf(stderr, "%s: %s\n", name.c_str(), status.message().c_str());
          std::exit(1);
        }
        ++calls;
        taken = Clock::now() - begin;
      } while (taken.count() < 0.02);
      seconds.push_back(taken.count() / calls);
      cpu_seconds.push_back(static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC / calls);
    }
    std::sort(seconds.begin(), seconds.end());
    std::sort(cpu_seconds.begin(), cpu_seconds.end());
    const double median = seconds[seconds.size() / 2];
    const double gb_s = bytes / median * 1e-9;
    const double gflop_s = flops / median * 1e-9;
    std::printf(
        "{\"case\": \"%s\", \"kernels\": \"%s\", \"threads\": %d, \"median_us\": %.1f, \"min_us\": %.1f, "
        "\"max_us\": %.1f, \"cpu_us\": %.1f, \"gb_s\": %.1f, \"gflop_s\": %.1f, \"read_ceiling_pct\": %.0f, "
        "\"f32_ceiling_pct\": %.0f}\n",
        name.c_str(), std::string(kernel_backend_name(table_.backend)).c_str(), options_.threads, median * 1e6,
        seconds.front() * 1e6, seconds.back() * 1e6, cpu_seconds[cpu_seconds.size() / 2] * 1e6, gb_s, gflop_s,
        100 * gb_s / ceilings_.read_gb_s, 100 * gflop_s / ceilings_.f32_gflop_s);
    std::fflush(stdout);
  }

 private:
  Options options_;
  ThreadPool pool_;
  Arena arena_;
  KernelTable table_;
  ExecContext ctx_;
  MachineCeilings ceilings_;
};

struct Shape {
  const char* name;
  int64_t heads, kda_dim;
  int64_t rank, nope, rope, v;
};
constexpr Shape kShapes[] = {{"mini", 16, 64, 256, 64, 64, 64}, {"k3", 96, 128, 512, 128, 64, 128}};

struct KdaInputs {
  KdaInputs(const Shape& shape, int64_t tokens, int64_t sequences)
      : unit(1.f / std::sqrt(static_cast<float>(shape.kda_dim))),
        qk(tokens * shape.heads * shape.kda_dim, -unit, unit),
        v(tokens * shape.heads * shape.kda_dim, -1.f, 1.f),
        g(tokens * shape.heads * shape.kda_dim, -2.f, -0.01f),
        beta(tokens * shape.heads, 0.f, 1.f),
        out(tokens * shape.heads * shape.kda_dim),
        state(sequences * shape.heads * shape.kda_dim * shape.kda_dim) {
    const int64_t H = shape.heads;
    const int64_t D = shape.kda_dim;
    args.q = args.k = TensorView<const float, 3>::contiguous(qk.data(), {tokens, H, D});
    args.v = TensorView<const float, 3>::contiguous(v.data(), {tokens, H, D});
    args.g = TensorView<const float, 3>::contiguous(g.data(), {tokens, H, D});
    args.beta = MatrixView<const float>::contiguous(beta.data(), {tokens, H});
    args.scale = unit;
    args.out = TensorView<float, 3>::contiguous(out.data(), {tokens, H, D});
    const int64_t rows = tokens / sequences;
    for (int64_t n = 0; n < sequences; ++n) segments.push_back({n * rows, rows, state.data() + n * H * D * D});
    args.segments = segments;
  }
  float unit;
  Floats qk, v, g, beta, out, state;
  std::vector<KdaSegment> segments;
  KdaArgs args;
};

void bench_kda(Bench& bench, const Shape& shape) {
  const auto H = static_cast<double>(shape.heads);
  const auto D = static_cast<double>(shape.kda_dim);
  for (const int64_t sequences : {1, 8}) {
    const std::string name = std::string("kda_recurrent/") + shape.name + "/N" + std::to_string(sequences);
    if (!bench.wants(name)) continue;
    KdaInputs inputs(shape, sequences, sequences);
    const double cells = static_cast<double>(sequences) * H * D * D;
    // A cell is read and written once; decay, two products and the update are 7 operations.
    bench.run(name, 8 * cells, 7 * cells, [&] { return kda_recurrent(bench.ctx(), inputs.args); });
  }
  const std::vector<int64_t> lengths = bench.is_ref() ? std::vector<int64_t>{32} : std::vector<int64_t>{512, 2048};
  for (const int64_t tokens : lengths) {
    const std::string name = std::string("kda_chunked/") + shape.name + "/T" + std::to_string(tokens);
    if (!bench.wants(name)) continue;
    KdaInputs inputs(shape, tokens, 1);
    const double chunks = static_cast<double>(tokens) / kKdaChunk;
    constexpr double kC = kKdaChunk;
    // The chunk form's usual count: a 16 × 16 inverse, four products of the triangles, three with the state.
    const double flops = chunks * H * (12 * kC * kC * kC + 8 * kC * kC * D + 6 * kC * D * D);
    const double bytes = 4 * static_cast<double>(tokens) * H * 5 * D + 8 * H * D * D;
    bench.run(name, bytes, flops, [&] { return kda_chunked(bench.ctx(), inputs.args); });
  }
}

void bench_conv(Bench& bench, const Shape& shape) {
  constexpr int64_t kWidth = 4;
  const int64_t channels = 3 * shape.heads * shape.kda_dim;
  for (const int64_t tokens : {1, 512}) {
    const std::string name = std::string("short_conv/") + shape.name + "/T" + std::to_string(tokens);
    if (!bench.wants(name)) continue;
    const Floats x(tokens * channels, -1.f, 1.f), weight(channels * kWidth, -1.f, 1.f);
    Floats out(tokens * channels), history((kWidth - 1) * channels);
    const ShortConvSegment segment{0, tokens, MatrixView<float>::contiguous(history.data(), {kWidth - 1, channels})};
    ShortConvArgs args;
    args.x = MatrixView<const float>::contiguous(x.data(), {tokens, channels});
    args.weight = MatrixView<const float>::contiguous(weight.data(), {channels, kWidth});
    args.out = MatrixView<float>::contiguous(out.data(), {tokens, channels});
    args.segments = {&segment, 1};
    const auto elements = static_cast<double>(tokens * channels);
    const double fixed = 4.0 * static_cast<double>(channels) * (kWidth + 2 * (kWidth - 1));
    bench.run(name, 8 * elements + fixed, 2 * kWidth * elements, [&] { return short_conv(bench.ctx(), args); });
  }
}

// A KDA layer between its projections in decode: fused, and as the operators that the fused one replaces. The calls
// take turns over 16 states, as the layers of a step do: none waits in L2.
void bench_decode(Bench& bench, const Shape& shape) {
  constexpr int64_t kTaps = 4, kStates = 16;
  const int64_t H = shape.heads, D = shape.kda_dim, P = H * D;
  const std::string fused = std::string("kda_decode/") + shape.name + "/N1";
  const std::string parts = std::string("kda_decode_parts/") + shape.name + "/N1";
  if (!bench.wants(fused) && !bench.wants(parts)) return;
  Floats x(P, -1.f, 1.f), beta(H, -1.f, 1.f), taps(3 * P * kTaps, -1.f, 1.f), norm(D, 0.5f, 1.5f), bias(P, -4.f, 0.f);
  Floats a_log(H, -1.f, 1.f), history(kStates * (kTaps - 1) * 3 * P), state(kStates * P * D), out(P), scratch(4 * P);
  const auto row = [&](Floats& f, int64_t n) { return MatrixView<float>::contiguous(f.data(), {1, n}); };
  int64_t turn = 0;
  const auto state_of = [&] { return state.data() + turn * P * D; };
  const auto history_of = [&] {
    return MatrixView<float>::contiguous(history.data() + turn * (kTaps - 1) * 3 * P, {kTaps - 1, 3 * P});
  };
  KdaDecodeArgs args;
  args.heads = H;
  args.q = args.k = args.v = args.z = args.gate = row(x, P);
  args.beta = row(beta, H);
  args.conv_weight = MatrixView<const float>::contiguous(taps.data(), {3 * P, kTaps});
  args.a_log = VectorView<const float>::contiguous(a_log.data(), {H});
  args.dt_bias = VectorView<const float>::contiguous(bias.data(), {P});
  args.lower_bound = -5.f;
  args.norm_weight = VectorView<const float>::contiguous(norm.data(), {D});
  args.scale = 1.f / std::sqrt(static_cast<float>(D));
  args.out = row(out, P);
  const auto cells = static_cast<double>(P * D);
  const auto run_fused = [&]() -> Status {
    turn = (turn + 1) % kStates;
    const KdaDecodeSegment segment{0, 1, state_of(), history_of()};
    args.segments = {&segment, 1};
    return kda_decode(bench.ctx(), args);
  };
  if (bench.wants(fused)) bench.run(fused, 8 * cells, 7 * cells, run_fused);
  const auto run_parts = [&]() -> Status {
    turn = (turn + 1) % kStates;
    const ExecContext& ctx = bench.ctx();
    const auto streams = MatrixView<float>::contiguous(scratch.data(), {4, P});  // q, k, v, g
    for (int64_t i = 0; i < 3; ++i) {
      const ShortConvSegment segment{0, 1, history_of().columns(i * P, P)};
      TANDEM_RETURN_IF_ERROR(
          short_conv(ctx, {args.q, args.conv_weight.rows(i * P, P), {&segment, 1}, streams.rows(i, 1)}));
    }
    const auto qk = MatrixView<float>::contiguous(scratch.data(), {2 * H, D});
    TANDEM_RETURN_IF_ERROR(l2_norm(ctx, {qk, args.l2_eps, qk}));
    TANDEM_RETURN_IF_ERROR(sigmoid_inplace(ctx, row(beta, H)));
    const auto heads = [&](float* p) { return TensorView<float, 3>::contiguous(p, {1, H, D}); };
    float* g = streams.row(3);
    TANDEM_RETURN_IF_ERROR(kda_gate(ctx, {heads(x.data()), args.a_log, args.dt_bias, args.lower_bound, heads(g)}));
    const KdaSegment segment{0, 1, state_of()};
    TANDEM_RETURN_IF_ERROR(kda_recurrent(ctx, {heads(streams.row(0)),
                                               heads(streams.row(1)),
                                               heads(streams.row(2)),
                                               heads(g),
                                               args.beta,
                                               args.scale,
                                               {&segment, 1},
                                               heads(out.data())}));
    const auto out_heads = MatrixView<float>::contiguous(out.data(), {H, D});
    const auto gates = MatrixView<const float>::contiguous(x.data(), {H, D});
    return rms_norm_gated(ctx, {out_heads, gates, args.norm_weight, args.norm_eps, out_heads});
  };
  if (bench.wants(parts)) bench.run(parts, 8 * cells, 7 * cells, run_parts);
}

struct MlaInputs {
  MlaInputs(const Shape& shape, int64_t rows, int64_t length)
      : q(rows * shape.heads * (shape.nope + shape.rope), -1.f, 1.f),
        latents((length + kPageTokens) * (shape.rank + shape.rope), -1.f, 1.f),
        out(rows * shape.heads * shape.v) {
    const int64_t width = shape.rank + shape.rope;
    const int64_t weights = shape.heads * (shape.nope + shape.v) * shape.rank;
    const Floats w(weights, -0.1f, 0.1f);
    for (int64_t i = 0; i < weights; ++i) weight.push_back(to_bf16(w.data()[i]));
    for (int64_t s = 0; s < length; s += kPageTokens) {
      pages.push_back(reinterpret_cast<const std::byte*>(latents.data() + s * width));
    }
    segment = {0, rows, {pages, kPageTokens, DType::kF32, length}};
    args.q = TensorView<const float, 3>::contiguous(q.data(), {rows, shape.heads, shape.nope + shape.rope});
    args.kv_b = {weight.data(), nullptr, shape.heads * (shape.nope + shape.v), shape.rank, WeightFormat::kBF16};
    args.kv_lora_rank = shape.rank;
    args.qk_nope_head_dim = shape.nope;
    args.qk_rope_head_dim = shape.rope;
    args.v_head_dim = shape.v;
    args.scale = 1.f / std::sqrt(static_cast<float>(shape.nope + shape.rope));
    args.segments = {&segment, 1};
    args.out = TensorView<float, 3>::contiguous(out.data(), {rows, shape.heads, shape.v});
  }
  static constexpr int64_t kPageTokens = 64;
  Floats q, latents, out;
  std::vector<bf16> weight;
  std::vector<const std::byte*> pages;
  MlaSegment segment;
  MlaArgs args;
};

void bench_mla(Bench& bench, const Shape& shape) {
  const auto H = static_cast<double>(shape.heads);
  const auto rank = static_cast<double>(shape.rank);
  const auto qk = static_cast<double>(shape.nope + shape.rope);
  const auto width = static_cast<double>(shape.rank + shape.rope);
  const auto weights = H * static_cast<double>(shape.nope + shape.v) * rank;
  const std::vector<int64_t> contexts =
      bench.is_ref() ? std::vector<int64_t>{256} : std::vector<int64_t>{128, 2048, 65536};
  for (const int64_t context : contexts) {
    const std::string absorbed = std::string("mla_absorbed/") + shape.name + "/context" + std::to_string(context);
    if (!bench.wants(absorbed)) continue;
    MlaInputs inputs(shape, 1, context);
    const double flops = 2 * weights + 2 * H * static_cast<double>(context) * (width + rank);
    bench.run(absorbed, 2 * weights + 4 * static_cast<double>(context) * width, flops,
              [&] { return mla_absorbed(bench.ctx(), inputs.args); });
  }
  const int64_t tokens = bench.is_ref() ? 32 : 512;
  const std::string expanded = std::string("mla_expanded/") + shape.name + "/T" + std::to_string(tokens);
  if (!bench.wants(expanded)) return;
  MlaInputs inputs(shape, tokens, tokens);
  const auto T = static_cast<double>(tokens);
  const double pairs = T * (T + 1) / 2;
  const double flops = 2 * T * weights + 2 * H * pairs * (qk + static_cast<double>(shape.v));
  const double bytes = 2 * weights + 4 * T * (width + H * (qk + static_cast<double>(shape.v)));
  bench.run(expanded, bytes, flops, [&] { return mla_expanded(bench.ctx(), inputs.args); });
}

int usage() {
  std::fprintf(stderr, "usage: mixer_bench [--threads N] [--kernels NAME] [--only SUBSTRING] [--repeat N]\n");
  return 2;
}

int main_of(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 == argc) return usage();
    const std::string value = argv[i + 1];
    if (flag == "--threads") {
      options.threads = std::max(1, std::atoi(value.c_str()));
    } else if (flag == "--kernels") {
      options.kernels = value;
    } else if (flag == "--only") {
      options.only = value;
    } else if (flag == "--repeat") {
      options.repeat = std::max(1, std::atoi(value.c_str()));
    } else {
      return usage();
    }
  }
  for (const KernelBackend backend : available_backends(detect_cpu_features())) {
    if (!options.kernels.empty() && options.kernels != kernel_backend_name(backend)) continue;
    Bench bench(options, make_kernel_table(detect_cpu_features(), backend).value());
    for (const Shape& shape : kShapes) {
      bench_kda(bench, shape);
      bench_decode(bench, shape);
      bench_conv(bench, shape);
      bench_mla(bench, shape);
    }
  }
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) { return tandem::main_of(argc, argv); }
