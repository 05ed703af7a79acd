// kernels/kda/short_conv.h: public vectors, goldens, and the laws of the contract.
#include "kernels/kda/short_conv.h"

#include <gmock/gmock.h>

#include "kda_case.h"
#include "support/golden.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;

struct ConvCase {
  int64_t T, C, W;
  GappedRows x, out, history;
  std::vector<float> weight;

  ConvCase(int64_t tokens, int64_t channels, int64_t width)
      : T(tokens),
        C(channels),
        W(width),
        x(T, 1, C),
        out(T, 1, C),
        history(W - 1, 1, C),
        weight(static_cast<size_t>(C * W)) {
    history.fill([](int64_t, int64_t, int64_t) { return 0.f; });
  }
  ShortConvArgs args(std::span<const ShortConvSegment> segments) {
    ShortConvArgs args;
    args.x = matrix(x);
    args.out = matrix(out);
    args.weight = MatrixView<const float>::contiguous(weight.data(), {C, W});
    args.segments = segments;
    return args;
  }
};

ConvCase random_conv_case(int64_t T, int64_t C, int64_t W, uint32_t seed) {
  ConvCase c(T, C, W);
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.f, 1.f);
  const auto gaussian = [&](int64_t, int64_t, int64_t) { return normal(rng); };
  c.x.fill(gaussian);
  c.history.fill(gaussian);
  for (float& w : c.weight) w = normal(rng);
  return c;
}

struct ConvOutcome {
  std::vector<float> out, history;
};

ConvOutcome run_conv(const ExecContext& ctx, ConvCase c, std::span<const int64_t> calls) {
  int64_t begin = 0;
  for (const int64_t rows : calls) {
    const ShortConvSegment segment{begin, rows, matrix(c.history)};
    const Status status = short_conv(ctx, c.args({&segment, 1}));
    EXPECT_TRUE(status.is_ok()) << status.message();
    begin += rows;
  }
  EXPECT_TRUE(c.out.gaps_untouched());
  EXPECT_TRUE(c.history.gaps_untouched());
  return {c.out.packed(), c.history.packed()};
}

// model.md §9
TEST(ShortConv, MatchesTheHandComputedVectors) {
  for_each_backend([](BackendFixture& backend) {
    ConvCase c(4, 1, 4);
    c.weight = {0.1f, -0.2f, 0.3f, 0.4f};
    const float u[] = {1.f, -2.f, 0.5f, 3.f};
    c.x.fill([&](int64_t t, int64_t, int64_t) { return u[t]; });
    const int64_t all[] = {4};
    const ConvOutcome actual = run_conv(backend.ctx(), c, all);
    const float expected[] = {0.239475064f, -0.188770334f, -0.212606216f, 1.598635141f};
    EXPECT_TRUE(all_close(actual.out, expected, tolerance_f32(4, 2.f)));
    const float last[] = {-2.f, 0.5f, 3.f};
    EXPECT_TRUE(all_equal_bits(actual.history, last));
  });
}

TEST(ShortConv, MatchesTheGoldens) {
  const Golden golden = Golden::load("golden/ops/short_conv.safetensors");
  for_each_backend([&](BackendFixture& backend) {
    for (const std::string from : {"zero", "hist"}) {
      SCOPED_TRACE(from);
      ConvCase c(11, 24, 4);
      c.weight = golden["w"].f32;
      c.x.fill([&](int64_t t, int64_t, int64_t i) { return golden["x"].f32[static_cast<size_t>(t * 24 + i)]; });
      // The golden keeps four columns a channel, newest last; the oldest is not needed.
      const auto history_of = [&](const std::string& name, int64_t j, int64_t channel) {
        return golden[name].f32[static_cast<size_t>(channel * 4 + 1 + j)];
      };
      if (from == "hist") c.history.fill([&](int64_t j, int64_t, int64_t i) { return history_of("hist0", j, i); });
      std::vector<float> history;
      for (int64_t j = 0; j < 3; ++j) {
        for (int64_t i = 0; i < 24; ++i) history.push_back(history_of("hist_from_" + from, j, i));
      }
      const std::vector<float>& y = golden["y_from_" + from].f32;
      const std::vector<std::vector<int64_t>> modes = {{11}, std::vector<int64_t>(11, 1), {2, 1, 5, 3}};
      for (const auto& calls : modes) {
        const ConvOutcome actual = run_conv(backend.ctx(), c, calls);
        EXPECT_TRUE(all_close(actual.out, y, tolerance_f32(4, max_abs(y))));
        EXPECT_TRUE(all_equal_bits(actual.history, history));
      }
    }
  });
}

TEST(ShortConv, AnySplitIsBitwiseTheSameAndAgreesWithDoublePrecision) {
  for_each_backend([](BackendFixture& backend) {
    for (const int64_t width : {1, 2, 3, 4, 5}) {
      for (const int64_t channels : {1, 15, 16, 17, 63, 255, 257, 600}) {
        SCOPED_TRACE(::testing::Message() << "width " << width << " channels " << channels);
        ConvCase c = random_conv_case(13, channels, width, static_cast<uint32_t>(channels + width));
        const int64_t all[] = {13};
        const ConvOutcome whole = run_conv(backend.ctx(), c, all);
        for (const auto& calls : {std::vector<int64_t>(13, 1), std::vector<int64_t>{1, 2, 7, 3}}) {
          const ConvOutcome split = run_conv(backend.ctx(), c, calls);
          EXPECT_TRUE(all_equal_bits(split.out, whole.out));
          EXPECT_TRUE(all_equal_bits(split.history, whole.history));
        }
        std::vector<float> expected;
        double largest = 0;
        for (int64_t t = 0; t < 13; ++t) {
          for (int64_t i = 0; i < channels; ++i) {
            double y = 0;
            for (int64_t j = 0; j < width; ++j) {
              const int64_t source = t - (width - 1) + j;
              const double u = source < 0 ? c.history.at(source + width - 1, 0, i) : c.x.at(source, 0, i);
              y += u * c.weight[static_cast<size_t>(i * width + j)];
              largest = std::max(largest, std::fabs(u * c.weight[static_cast<size_t>(i * width + j)]));
            }
            expected.push_back(static_cast<float>(y / (1 + std::exp(-y))));
          }
        }
        EXPECT_TRUE(all_close(whole.out, expected, tolerance_f32(width, static_cast<float>(largest))));
      }
    }
  });
}

TEST(ShortConv, OutMayBeX) {
  for_each_backend([](BackendFixture& backend) {
    ConvCase c = random_conv_case(40, 300, 4, 3);
    const int64_t all[] = {40};
    const ConvOutcome expected = run_conv(backend.ctx(), c, all);
    const ShortConvSegment segment{0, 40, matrix(c.history)};
    ShortConvArgs args = c.args({&segment, 1});
    args.out = matrix(c.x);
    ASSERT_TRUE(short_conv(backend.ctx(), args).is_ok());
    EXPECT_TRUE(all_equal_bits(c.x.packed(), expected.out));
    EXPECT_TRUE(all_equal_bits(c.history.packed(), expected.history));
  });
}

TEST(ShortConv, NeighboursAndPaddedRowsChangeNothing) {
  for_each_backend([](BackendFixture& backend) {
    ConvCase a = random_conv_case(2, 70, 4, 5);
    ConvCase b = random_conv_case(9, 70, 4, 6);
    b.weight = a.weight;
    const int64_t all_a[] = {2}, all_b[] = {9};
    const ConvOutcome alone_a = run_conv(backend.ctx(), a, all_a);
    const ConvOutcome alone_b = run_conv(backend.ctx(), b, all_b);
    ConvCase batch(9 + 2 + 1, 70, 4);  // b, a, one padding row of NaN
    batch.weight = a.weight;
    for (int64_t t = 0; t < 11; ++t) {
      for (int64_t i = 0; i < 70; ++i) batch.x.at(t, 0, i) = t < 9 ? b.x.at(t, 0, i) : a.x.at(t - 9, 0, i);
    }
    GappedRows idle = random_conv_case(0, 70, 4, 7).history;
    const std::vector<float> idle_before = idle.packed();
    const ShortConvSegment segments[] = {{9, 2, matrix(a.history)}, {11, 0, matrix(idle)}, {0, 9, matrix(b.history)}};
    ASSERT_TRUE(short_conv(backend.ctx(), batch.args(segments)).is_ok());
    std::vector<float> expected = alone_b.out;
    expected.insert(expected.end(), alone_a.out.begin(), alone_a.out.end());
    const std::vector<float> out = batch.out.packed();
    EXPECT_TRUE(all_equal_bits(std::span(out).first(11 * 70), expected));
    for (const float padded : std::span(out).subspan(11 * 70)) EXPECT_TRUE(std::isnan(padded));
    EXPECT_TRUE(all_equal_bits(a.history.packed(), alone_a.history));
    EXPECT_TRUE(all_equal_bits(b.history.packed(), alone_b.history));
    EXPECT_TRUE(all_equal_bits(idle.packed(), idle_before));
  });
}

TEST(ShortConv, RefusesWhatDoesNotFit) {
  BackendFixture backend(KernelBackend::kRef);
  ConvCase c = random_conv_case(4, 8, 4, 8);
  ShortConvSegment segment{0, 4, matrix(c.history)};
  segment.history.shape[0] = 4;
  EXPECT_THAT(short_conv(backend.ctx(), c.args({&segment, 1})).message(),
              HasSubstr("short_conv: segment 0 history: expected shape [3, 8], found shape [4, 8]"));
  segment = {1, 4, matrix(c.history)};
  EXPECT_THAT(short_conv(backend.ctx(), c.args({&segment, 1})).message(),
              HasSubstr("segment 0: expected rows inside [0, 4), found 4 rows from row 1"));
  segment = {0, 4, matrix(c.history)};
  ShortConvArgs args = c.args({&segment, 1});
  args.weight.shape[0] = 7;
  EXPECT_THAT(short_conv(backend.ctx(), args).message(),
              HasSubstr("weight: expected shape [8, 4], found shape [7, 4]"));
  EXPECT_TRUE(short_conv(backend.ctx(), random_conv_case(0, 8, 4, 9).args({})).is_ok());
}

}  // namespace
}  // namespace tandem::test
