#include "kernels/elementwise/elementwise.h"

#include <gmock/gmock.h>

#include "kernels/dense_case.h"
#include "support/compare.h"

namespace tandem::test {
namespace {

TEST(Elementwise, EmbeddingWidensEveryFormatExactly) {
  for_each_backend([](BackendFixture& backend) {
    for (const WeightFormat format : kAllFormats) {
      for (const int64_t D : {32, 64, 96, 1, 15, 17, 33}) {
        if (format == WeightFormat::kMxfp4 && D % 32 != 0) continue;
        const StoredWeight table(format, 11, D, 1);
        const std::vector<TokenId> tokens = {TokenId(10), TokenId(0), TokenId(3), TokenId(3)};
        Matrix out(4, D);
        ASSERT_TRUE(embedding(backend.ctx(), {table.view(), tokens, out.view()}).is_ok());
        for (int64_t t = 0; t < 4; ++t) {
          for (int64_t d = 0; d < D; ++d)
            ASSERT_EQ(out(t, d), table.value(tokens[t].value, d)) << int(format) << " " << D;
        }
        EXPECT_TRUE(out.padding_is_nan());
      }
    }
  });
}

TEST(Elementwise, EmbeddingRefusesTokensOutsideTheTable) {
  BackendFixture backend(KernelBackend::kRef);
  const StoredWeight table(WeightFormat::kBF16, 11, 8, 1);
  Matrix out(2, 8);
  for (const int32_t bad : {-1, 11}) {
    const std::vector<TokenId> tokens = {TokenId(0), TokenId(bad)};
    const Status status = embedding(backend.ctx(), {table.view(), tokens, out.view()});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), ::testing::HasSubstr("token 1: expected an id in [0, 11)"));
  }
}

TEST(Elementwise, AddAndGatesMatchDoubleInPlaceToo) {
  for_each_backend([](BackendFixture& backend) {
    for (const int64_t D : {1, 5, 16, 31, 200}) {
      for (const int64_t T : {0, 1, 2, 130}) {
        Matrix a = Matrix::random(T, D, 1, 5.f);
        Matrix b = Matrix::random(T, D, 2, 5.f);
        Matrix out(T, D);
        ASSERT_TRUE(add(backend.ctx(), {a.view(), b.view(), out.view()}).is_ok());
        Matrix gated = b;
        ASSERT_TRUE(sigmoid_gate(backend.ctx(), {a.view(), gated.view(), gated.view()}).is_ok());
        Matrix beta = b;
        ASSERT_TRUE(sigmoid_inplace(backend.ctx(), beta.view()).is_ok());
        for (int64_t t = 0; t < T; ++t) {
          for (int64_t d = 0; d < D; ++d) {
            ASSERT_EQ(out(t, d), a(t, d) + b(t, d));
            const double s = 1 / (1 + std::exp(-static_cast<double>(b(t, d))));
            const double x = static_cast<double>(a(t, d));
            ASSERT_NEAR(beta(t, d), s, tolerance_f32(1, static_cast<float>(s)));
            ASSERT_NEAR(gated(t, d), x * s, tolerance_f32(1, static_cast<float>(std::fabs(x * s))));
          }
        }
        EXPECT_TRUE(out.padding_is_nan() && gated.padding_is_nan() && beta.padding_is_nan());
        ASSERT_TRUE(add(backend.ctx(), {a.view(), b.view(), a.view()}).is_ok());
        EXPECT_TRUE(all_equal_bits(a.values(), out.values()));
      }
    }
  });
}

TEST(Elementwise, SigmoidHasExactLimitsAndKeepsNan) {
  for_each_backend([](BackendFixture& backend) {
    Matrix x(1, 6, {0.f, 200.f, -200.f, INFINITY, -INFINITY, NAN});
    ASSERT_TRUE(sigmoid_inplace(backend.ctx(), x.view()).is_ok());
    EXPECT_EQ(x(0, 0), 0.5f);
    EXPECT_EQ(x(0, 1), 1.f);
    EXPECT_EQ(x(0, 2), 0.f);
    EXPECT_EQ(x(0, 3), 1.f);
    EXPECT_EQ(x(0, 4), 0.f);
    EXPECT_TRUE(std::isnan(x(0, 5)));
  });
}

TEST(Elementwise, RoundToBf16IsBitwiseTheScalarRule) {
  for_each_backend([](BackendFixture& backend) {
    std::vector<float> values;
    for (uint32_t high = 0; high < 0x10000; high += 7) {
      for (const uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
        values.push_back(std::bit_cast<float>((high << 16) | low));
      }
    }
    const auto n = static_cast<int64_t>(values.size());
    Matrix x(3, n / 3, values);
    ASSERT_TRUE(round_to_bf16(backend.ctx(), x.view()).is_ok());
    std::vector<float> expected;
    for (int64_t i = 0; i < n / 3 * 3; ++i) expected.push_back(round_bf16(values[static_cast<size_t>(i)]));
    EXPECT_TRUE(all_equal_bits(x.values(), expected));
  });
}

TEST(Elementwise, RefusesMismatchedShapes) {
  BackendFixture backend(KernelBackend::kRef);
  Matrix a = Matrix::random(2, 4, 1);
  EXPECT_THAT(add(backend.ctx(), {a.view(), a.view().rows(0, 1), a.view()}).message(),
              ::testing::HasSubstr("add: b: expected shape [2, 4], found shape [1, 4]"));
  EXPECT_FALSE(sigmoid_gate(backend.ctx(), {a.view(), a.view(), a.view().columns(0, 3)}).is_ok());
  MatrixView<float> overlapping = a.view();
  overlapping.stride[0] = 2;
  EXPECT_FALSE(round_to_bf16(backend.ctx(), overlapping).is_ok());
  MatrixView<float> nowhere = a.view();
  nowhere.data = nullptr;
  EXPECT_FALSE(sigmoid_inplace(backend.ctx(), nowhere).is_ok());
}

}  // namespace
}  // namespace tandem::test
