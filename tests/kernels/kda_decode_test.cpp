// kernels/kda/kda_decode.h: bit for bit the operators that it fuses, in every backend and for every shape.
#include "kernels/kda/kda_decode.h"

#include <gmock/gmock.h>

#include "kda_case.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/kda/short_conv.h"
#include "kernels/norm/norm.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;

struct SegmentRows {
  int64_t begin, rows;
};

// Every row is T wide; rows of no segment hold NaN.
struct DecodeCase {
  int64_t T, H, K, V, W;
  GappedRows q, k, v, z, beta, gate, out;
  std::vector<GappedRows> histories;
  std::vector<std::vector<float>> states;
  std::vector<float> taps, a_log, dt_bias, norm_weight;
  std::optional<float> lower_bound;
  std::vector<SegmentRows> ranges;
  std::vector<KdaDecodeSegment> segments;

  DecodeCase(int64_t tokens, int64_t heads, int64_t key_dim, int64_t value_dim, int64_t width,
             std::vector<SegmentRows> rows, uint32_t seed)
      : T(tokens),
        H(heads),
        K(key_dim),
        V(value_dim),
        W(width),
        q(T, H, K),
        k(T, H, K),
        v(T, H, V),
        z(T, H, K),
        beta(T, 1, H),
        gate(T, H, V),
        out(T, H, V),
        ranges(std::move(rows)) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal(0.f, 1.f);
    const auto gaussian = [&](int64_t, int64_t, int64_t) { return normal(rng); };
    for (GappedRows* input : {&q, &k, &v, &z, &beta, &gate}) {
      input->fill([](int64_t, int64_t, int64_t) { return std::numeric_limits<float>::quiet_NaN(); });
      for (const SegmentRows& range : ranges) {
        for (int64_t t = range.begin; t < range.begin + range.rows; ++t) {
          const auto view = input->view();
          for (int64_t h = 0; h < view.shape[1]; ++h) {
            for (int64_t i = 0; i < view.shape[2]; ++i) input->at(t, h, i) = normal(rng);
          }
        }
      }
    }
    for (std::vector<float>* weights : {&taps, &a_log, &dt_bias, &norm_weight}) {
      const int64_t count = weights == &taps      ? H * (2 * K + V) * W
                            : weights == &a_log   ? H
                            : weights == &dt_bias ? H * K
                                                  : V;
      for (int64_t i = 0; i < count; ++i) weights->push_back(normal(rng));
    }
    for (size_t s = 0; s < ranges.size(); ++s) {
      histories.emplace_back(W - 1, 1, H * (2 * K + V)).fill(gaussian);
      states.emplace_back(static_cast<size_t>(H * K * V));
      for (float& cell : states.back()) cell = normal(rng);
    }
    if (seed % 2 == 0) lower_bound = -5.f;
  }
  float scale() const { return 1.f / std::sqrt(static_cast<float>(K)); }
  MatrixView<float> history(size_t s) { return W > 1 ? matrix(histories[s]) : MatrixView<float>{}; }

  KdaDecodeArgs args() {
    segments.clear();
    for (size_t s = 0; s < ranges.size(); ++s) {
      segments.push_back({ranges[s].begin, ranges[s].rows, states[s].data(), history(s)});
    }
    KdaDecodeArgs args;
    args.heads = H;
    args.q = matrix(q);
    args.k = matrix(k);
    args.v = matrix(v);
    args.z = matrix(z);
    args.beta = matrix(beta);
    args.gate = matrix(gate);
    args.conv_weight = MatrixView<const float>::contiguous(taps.data(), {H * (2 * K + V), W});
    args.a_log = VectorView<const float>::contiguous(a_log.data(), {H});
    args.dt_bias = VectorView<const float>::contiguous(dt_bias.data(), {H * K});
    args.lower_bound = lower_bound;
    args.norm_weight = VectorView<const float>::contiguous(norm_weight.data(), {V});
    args.norm_eps = 1e-5f;
    args.scale = scale();
    args.segments = segments;
    args.out = matrix(out);
    return args;
  }
};

// The definition, with the public operators, on the rows of one segment.
void run_parts(const ExecContext& ctx, DecodeCase& c, size_t s) {
  const SegmentRows range = c.ranges[s];
  if (range.rows == 0) return;
  const auto ok = [](const Status& status) { EXPECT_TRUE(status.is_ok()) << status.message(); };
  const auto convolve = [&](GappedRows& rows, int64_t first) {
    const MatrixView<float> x = matrix(rows);
    ShortConvSegment segment{range.begin, range.rows, {}};
    if (c.W > 1) segment.history = c.history(s).columns(first, x.shape[1]);
    const auto taps = MatrixView<const float>::contiguous(c.taps.data(), {c.H * (2 * c.K + c.V), c.W});
    ok(short_conv(ctx, {x, taps.rows(first, x.shape[1]), {&segment, 1}, x}));
  };
  convolve(c.q, 0);
  convolve(c.k, c.H * c.K);
  convolve(c.v, 2 * c.H * c.K);
  for (int64_t t = range.begin; t < range.begin + range.rows; ++t) {
    for (GappedRows* rows : {&c.q, &c.k}) {
      const auto heads = MatrixView<float>::contiguous(matrix(*rows).row(t), {c.H, c.K});
      ok(l2_norm(ctx, {heads, 1e-6f, heads}));
    }
    ok(sigmoid_inplace(ctx, matrix(c.beta).rows(t, 1)));
  }
  KdaGateArgs gate;
  gate.z = gate.g = c.z.view();
  gate.z.data = gate.g.data = c.z.view().data + range.begin * c.z.view().stride[0];
  gate.z.shape[0] = gate.g.shape[0] = range.rows;
  gate.a_log = VectorView<const float>::contiguous(c.a_log.data(), {c.H});
  gate.dt_bias = VectorView<const float>::contiguous(c.dt_bias.data(), {c.H * c.K});
  gate.lower_bound = c.lower_bound;
  ok(kda_gate(ctx, gate));
  const KdaSegment segment{range.begin, range.rows, c.states[s].data()};
  KdaArgs step;
  step.q = c.q.view();
  step.k = c.k.view();
  step.v = c.v.view();
  step.g = c.z.view();
  step.beta = matrix(c.beta);
  step.scale = c.scale();
  step.segments = {&segment, 1};
  step.out = c.out.view();
  ok(kda_recurrent(ctx, step));
  for (int64_t t = range.begin; t < range.begin + range.rows; ++t) {
    const auto heads = MatrixView<float>::contiguous(matrix(c.out).row(t), {c.H, c.V});
    const auto gates = MatrixView<const float>::contiguous(matrix(c.gate).row(t), {c.H, c.V});
    ok(rms_norm_gated(ctx,
                      {heads, gates, VectorView<const float>::contiguous(c.norm_weight.data(), {c.V}), 1e-5f, heads}));
  }
}

void expect_same(DecodeCase& actual, DecodeCase& expected) {
  for (const SegmentRows& range : expected.ranges) {
    for (int64_t t = range.begin; t < range.begin + range.rows; ++t) {
      const auto width = static_cast<size_t>(expected.H * expected.V);
      EXPECT_TRUE(all_equal_bits({matrix(actual.out).row(t), width}, {matrix(expected.out).row(t), width}))
          << "row " << t;
    }
  }
  EXPECT_TRUE(actual.out.gaps_untouched());
  for (size_t s = 0; s < expected.states.size(); ++s) {
    EXPECT_TRUE(all_equal_bits(actual.states[s], expected.states[s])) << "state " << s;
    EXPECT_TRUE(actual.histories[s].gaps_untouched());
    EXPECT_TRUE(all_equal_bits(actual.histories[s].packed(), expected.histories[s].packed())) << "history " << s;
  }
}

struct DecodeDims {
  int64_t H, K, V, W;
};

TEST(KdaDecode, IsTheFusedOperatorsBitForBit) {
  const std::vector<SegmentRows> batch = {{0, 1}, {1, 1}, {3, 0}, {3, 5}, {9, 1}, {10, 18}};
  for_each_backend([&](BackendFixture& backend) {
    uint32_t seed = 0;
    for (const DecodeDims& d : {DecodeDims{2, 64, 64, 4},
                                {3, 128, 128, 4},
                                {2, 33, 17, 4},
                                {1, 1, 1, 2},
                                {4, 16, 65, 1},
                                {2, 15, 31, 3},
                                {5, 20, 8, 6}}) {
      SCOPED_TRACE(::testing::Message() << "H " << d.H << " K " << d.K << " V " << d.V << " W " << d.W);
      DecodeCase fused(28, d.H, d.K, d.V, d.W, batch, ++seed);
      DecodeCase parts = fused;
      const Status status = kda_decode(backend.ctx(), fused.args());
      ASSERT_TRUE(status.is_ok()) << status.message();
      for (size_t s = 0; s < batch.size(); ++s) run_parts(backend.ctx(), parts, s);
      expect_same(fused, parts);
    }
  });
}

// Any split of a sequence into calls, any number of threads.
TEST(KdaDecode, SplitsAndThreadsChangeNothing) {
  for (const KernelBackend kind : available_backends(detect_cpu_features())) {
    SCOPED_TRACE(std::string(kernel_backend_name(kind)));
    BackendFixture one(kind, 1), three(kind, 3);
    DecodeCase whole(23, 3, 32, 32, 4, {{0, 23}}, 8);
    DecodeCase split = whole;
    ASSERT_TRUE(kda_decode(one.ctx(), whole.args()).is_ok());
    for (const SegmentRows& range : {SegmentRows{0, 1}, {1, 2}, {3, 17}, {20, 3}}) {
      split.ranges = {range};
      ASSERT_TRUE(kda_decode(three.ctx(), split.args()).is_ok());
    }
    split.ranges = whole.ranges;
    expect_same(split, whole);
  }
}

TEST(KdaDecode, RefusesWhatDoesNotFit) {
  BackendFixture backend(KernelBackend::kRef);
  DecodeCase c(3, 2, 8, 4, 4, {{0, 3}}, 1);
  const auto expect_refusal = [&](const char* text, const std::function<void(KdaDecodeArgs&)>& change) {
    KdaDecodeArgs args = c.args();
    change(args);
    const Status status = kda_decode(backend.ctx(), args);
    EXPECT_FALSE(status.is_ok()) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  expect_refusal("kda_decode: heads", [](KdaDecodeArgs& a) { a.heads = 3; });
  expect_refusal("kda_decode: heads", [](KdaDecodeArgs& a) { a.heads = 0; });
  expect_refusal("kda_decode: k", [](KdaDecodeArgs& a) { a.k.shape[1] = 15; });
  expect_refusal("kda_decode: z", [](KdaDecodeArgs& a) { a.z.shape[0] = 2; });
  expect_refusal("kda_decode: beta", [](KdaDecodeArgs& a) { a.beta.shape[1] = 3; });
  expect_refusal("kda_decode: gate", [](KdaDecodeArgs& a) { a.gate.data = nullptr; });
  expect_refusal("kda_decode: conv_weight", [](KdaDecodeArgs& a) { a.conv_weight.shape[0] = 8; });
  expect_refusal("kda_decode: norm_weight", [](KdaDecodeArgs& a) { a.norm_weight.shape[0] = 5; });
  expect_refusal("kda_decode: dt_bias", [](KdaDecodeArgs& a) { a.dt_bias.shape[0] = 5; });
  expect_refusal("kda_decode: lower_bound", [](KdaDecodeArgs& a) { a.lower_bound = 1.f; });
  expect_refusal("kda_decode: norm_eps", [](KdaDecodeArgs& a) { a.norm_eps = 0.f; });
  expect_refusal("kda_decode: segment 0", [&](KdaDecodeArgs&) { c.segments[0].num_rows = 4; });
  expect_refusal("kda_decode: segment 0 state", [&](KdaDecodeArgs&) { c.segments[0].state = nullptr; });
  expect_refusal("kda_decode: segment 0 history", [&](KdaDecodeArgs&) { c.segments[0].history.shape[0] = 2; });
}

}  // namespace
}  // namespace tandem::test
