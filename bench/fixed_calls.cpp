// One kernel call of fixed work, repeated, on one thread: the program that tools/instruction_counts.sh counts. No
// clock.
//
//   fixed_calls                            lists the cases
//   fixed_calls CASE CALLS BACKEND         BACKEND: portable | avx2 | avx512
//
// Shapes are k3-mini's (16 heads, K = V = 64; MLA rank 256, 64/64/64; width 1024; experts 512 × 512).
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/kernel_table.h"

namespace tandem {
namespace {

constexpr int64_t kHeads = 16, kHeadDim = 64, kWidth = 1024, kTaps = 4;

std::vector<float> floats(int64_t count, float low, float high) {
  std::vector<float> values(static_cast<size_t>(count));
  uint64_t x = 1;
  for (float& v : values) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    v = low + (high - low) * static_cast<float>(x >> 40) * 0x1p-24f;
  }
  return values;
}

// [rows, cols] floats that own their memory.
struct Rows {
  std::vector<float> data;
  MatrixView<float> view;
  Rows(int64_t rows, int64_t cols, float low = -1.f, float high = 1.f) : data(floats(rows * cols, low, high)) {
    view = MatrixView<float>::contiguous(data.data(), {rows, cols});
  }
  Rows(const Rows&) = delete;
  VectorView<const float> vector() const {
    return VectorView<const float>::contiguous(data.data(), {static_cast<int64_t>(data.size())});
  }
  TensorView<float, 3> heads(int64_t count) {
    return TensorView<float, 3>::contiguous(data.data(), {view.shape[0], count, view.shape[1] / count});
  }
};

struct Weights {
  std::vector<uint8_t> bytes, scale;
  WeightView view;
  Weights(WeightFormat format, int64_t rows, int64_t cols) {
    view.rows = rows;
    view.cols = cols;
    view.format = format;
    bytes.resize(static_cast<size_t>(rows * view.row_bytes()));
    for (size_t i = 0; i < bytes.size(); ++i) {
      // Packed codes of any value; bf16 in [0.5, 2) of either sign.
      const auto code = static_cast<uint8_t>(i * 37);
      bytes[i] = format == WeightFormat::kMxfp4 ? code : i % 2 == 0 ? code : static_cast<uint8_t>(0x3f | (code & 0x80));
    }
    if (format == WeightFormat::kMxfp4) scale.assign(static_cast<size_t>(rows * cols / 32), 120);
    view.data = bytes.data();
    view.scale = scale.empty() ? nullptr : scale.data();
  }
  Weights(const Weights&) = delete;
};

using Call = std::function<Status(const ExecContext&)>;
using Repeat = std::function<Status(const Call&)>;  // runs a call as often as asked

Status run_linear(const Repeat& repeat, WeightFormat format, int64_t T) {
  const Weights weights(format, kWidth, kWidth);
  Rows x(T, kWidth), y(T, kWidth);
  const LinearOutput output{weights.view, y.view};
  return repeat([&](const ExecContext& ctx) { return linear(ctx, {.x = x.view, .outputs = {&output, 1}}); });
}

Status run_experts(const Repeat& repeat, int64_t T) {
  constexpr int64_t kLatent = 512, kExperts = 16, kTopK = 8;
  const Weights w(WeightFormat::kMxfp4, kLatent, kLatent);
  const std::vector<ExpertWeights> experts(kExperts, {w.view, w.view, w.view});
  Rows z(T, kLatent), topk_weights(T, kTopK), out(T, kLatent);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < T * kTopK; ++i) ids.push_back(static_cast<int32_t>(i % kTopK * 2 + i / kTopK % 2));
  MoeExpertsArgs args;
  args.z = z.view;
  args.topk_ids = MatrixView<const int32_t>::contiguous(ids.data(), {T, kTopK});
  args.topk_weights = topk_weights.view;
  args.experts = experts;
  args.out = out.view;
  return repeat([&](const ExecContext& ctx) { return moe_experts(ctx, args); });
}

Status run_kda_decode(const Repeat& repeat) {
  Rows q(1, kWidth), z(1, kWidth, -4.f, 0.f), beta(1, kHeads), out(1, kWidth);
  Rows taps(3 * kWidth, kTaps), history(kTaps - 1, 3 * kWidth), a_log(1, kHeads), bias(1, kWidth), norm(1, kHeadDim);
  Rows state(kHeads * kHeadDim, kHeadDim);
  const KdaDecodeSegment segment{0, 1, state.data.data(), history.view};
  KdaDecodeArgs args;
  args.heads = kHeads;
  args.q = args.k = args.v = args.gate = q.view;
  args.z = z.view;
  args.beta = beta.view;
  args.conv_weight = taps.view;
  args.a_log = a_log.vector();
  args.dt_bias = bias.vector();
  args.lower_bound = -5.f;
  args.norm_weight = norm.vector();
  args.scale = 0.125f;
  args.segments = {&segment, 1};
  args.out = out.view;
  return repeat([&](const ExecContext& ctx) { return kda_decode(ctx, args); });
}

Status run_kda_chunked(const Repeat& repeat) {
  constexpr int64_t kTokens = 64;
  Rows qk(kTokens, kWidth, -0.125f, 0.125f), v(kTokens, kWidth), g(kTokens, kWidth, -2.f, -0.01f);
  Rows beta(kTokens, kHeads, 0.f, 1.f), out(kTokens, kWidth), state(kHeads * kHeadDim, kHeadDim);
  const KdaSegment segment{0, kTokens, state.data.data()};
  KdaArgs args;
  args.q = args.k = qk.heads(kHeads);
  args.v = v.heads(kHeads);
  args.g = g.heads(kHeads);
  args.beta = beta.view;
  args.scale = 0.125f;
  args.segments = {&segment, 1};
  args.out = out.heads(kHeads);
  return repeat([&](const ExecContext& ctx) { return kda_chunked(ctx, args); });
}

Status run_short_conv(const Repeat& repeat) {
  constexpr int64_t kTokens = 64;
  Rows x(kTokens, kWidth), taps(kWidth, kTaps), history(kTaps - 1, kWidth), out(kTokens, kWidth);
  const ShortConvSegment segment{0, kTokens, history.view};
  const ShortConvArgs args{x.view, taps.view, {&segment, 1}, out.view};
  return repeat([&](const ExecContext& ctx) { return short_conv(ctx, args); });
}

Status run_mla(const Repeat& repeat, bool absorbed) {
  constexpr int64_t kRank = 256, kRope = 64, kLength = 256, kPageTokens = 64;
  const int64_t rows = absorbed ? 1 : kLength;
  const Weights kv_b(WeightFormat::kBF16, kHeads * 2 * kHeadDim, kRank);
  Rows q(rows, kHeads * (kHeadDim + kRope)), latents(kLength, kRank + kRope), out(rows, kHeads * kHeadDim);
  std::vector<const std::byte*> pages;
  for (int64_t s = 0; s < kLength; s += kPageTokens) {
    pages.push_back(reinterpret_cast<const std::byte*>(latents.view.row(s)));
  }
  const MlaSegment segment{0, rows, {pages, kPageTokens, DType::kF32, kLength}};
  MlaArgs args;
  args.q = q.heads(kHeads);
  args.kv_b = kv_b.view;
  args.kv_lora_rank = kRank;
  args.qk_nope_head_dim = kHeadDim;
  args.qk_rope_head_dim = kRope;
  args.v_head_dim = kHeadDim;
  args.scale = 0.1f;
  args.segments = {&segment, 1};
  args.out = out.heads(kHeads);
  return repeat([&](const ExecContext& ctx) { return absorbed ? mla_absorbed(ctx, args) : mla_expanded(ctx, args); });
}

Status run_attn_res(const Repeat& repeat) {
  Rows a(1, kWidth), b(1, kWidth), c(1, kWidth), weight(1, kWidth), out(1, kWidth);
  const MatrixView<const float> sources[] = {a.view, b.view, c.view};
  return repeat([&](const ExecContext& ctx) { return attn_res_mix(ctx, {sources, weight.vector(), 1e-5f, out.view}); });
}

Status run_rms_norm(const Repeat& repeat) {
  Rows x(1, kWidth), weight(1, kWidth), out(1, kWidth);
  return repeat([&](const ExecContext& ctx) { return rms_norm(ctx, {x.view, weight.vector(), 1e-5f, out.view}); });
}

Status run_gated_act(const Repeat& repeat) {
  Rows gate(1, kWidth), up(1, kWidth), out(1, kWidth);
  const GatedActParams situ{GatedAct::kSitu, 4.f, 25.f};
  return repeat([&](const ExecContext& ctx) { return gated_act(ctx, {gate.view, up.view, situ, out.view}); });
}

const std::map<std::string, std::function<Status(const Repeat&)>> kCases = {
    {"attn_res_mix/3x1024", run_attn_res},
    {"gated_act/1024", run_gated_act},
    {"kda_chunked/T64", run_kda_chunked},
    {"kda_decode/N1", run_kda_decode},
    {"linear_bf16/T1_1024x1024", [](const Repeat& r) { return run_linear(r, WeightFormat::kBF16, 1); }},
    {"linear_bf16/T16_1024x1024", [](const Repeat& r) { return run_linear(r, WeightFormat::kBF16, 16); }},
    {"linear_mxfp4/T1_1024x1024", [](const Repeat& r) { return run_linear(r, WeightFormat::kMxfp4, 1); }},
    {"mla_absorbed/context256", [](const Repeat& r) { return run_mla(r, true); }},
    {"mla_expanded/T256", [](const Repeat& r) { return run_mla(r, false); }},
    {"moe_experts/T1_top8", [](const Repeat& r) { return run_experts(r, 1); }},
    {"moe_experts/T16_top8", [](const Repeat& r) { return run_experts(r, 16); }},
    {"rms_norm/1024", run_rms_norm},
    {"short_conv/T64_1024", run_short_conv},
};

int main_of(int argc, char** argv) {
  if (argc == 1) {
    for (const auto& [name, run] : kCases) std::printf("%s\n", name.c_str());
    return 0;
  }
  const auto found = argc == 4 ? kCases.find(argv[1]) : kCases.end();
  const Result<std::optional<KernelBackend>> backend = parse_kernel_backend(argc == 4 ? argv[3] : "");
  if (found == kCases.end() || !backend.is_ok()) {
    std::fprintf(stderr, "usage: fixed_calls [CASE CALLS BACKEND]\n");
    return 2;
  }
  const Result<KernelTable> table = make_kernel_table(detect_cpu_features(), backend.value());
  if (!table.is_ok()) {
    std::fprintf(stderr, "fixed_calls: %s\n", table.status().message().c_str());
    return 1;
  }
  ThreadPool pool(1);
  Arena arena;
  const ExecContext ctx{pool, arena, table.value()};
  const int calls = std::atoi(argv[2]);
  const Status status = found->second([&](const Call& call) {
    for (int i = 0; i < calls; ++i) TANDEM_RETURN_IF_ERROR(call(ctx));
    return Status::ok();
  });
  if (!status.is_ok()) std::fprintf(stderr, "fixed_calls: %s\n", status.message().c_str());
  return status.is_ok() ? 0 : 1;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) { return tandem::main_of(argc, argv); }
