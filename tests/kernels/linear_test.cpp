#include "kernels/linear/linear.h"

#include <gmock/gmock.h>

#include "kernels/dense_case.h"
#include "support/compare.h"
#include "support/golden.h"

namespace tandem::test {
namespace {

Matrix run_linear(const ExecContext& ctx, Matrix& x, const StoredWeight& weight) {
  Matrix y(x.rows(), weight.view().rows);
  const LinearOutput output{weight.view(), y.view()};
  const Status status = linear(ctx, {x.view(), {&output, 1}});
  EXPECT_TRUE(status.is_ok()) << status.message();
  EXPECT_TRUE(y.padding_is_nan());
  return y;
}

// Every product in double, and what the f32 sum may be off by.
void expect_matches_double(const Matrix& x, const StoredWeight& weight, const Matrix& y) {
  const int64_t in = x.cols();
  for (int64_t t = 0; t < x.rows(); ++t) {
    for (int64_t o = 0; o < y.cols(); ++o) {
      double exact = 0.0;
      double magnitude = 0.0;
      for (int64_t c = 0; c < in; ++c) {
        const double product = static_cast<double>(x(t, c)) * static_cast<double>(weight.value(o, c));
        exact += product;
        magnitude += product * product;
      }
      const float scale = static_cast<float>(std::sqrt(magnitude));  // size of the walk that the sum takes
      ASSERT_LE(std::fabs(static_cast<double>(y(t, o)) - exact), tolerance_f32(in, scale))
          << "y[" << t << ", " << o << "]";
    }
  }
}

TEST(Linear, MatchesDoubleAroundEveryTileEdge) {
  struct Shape {
    int64_t tokens, in, out;
  };
  const Shape shapes[] = {{1, 1, 1},    {1, 15, 3},    {1, 16, 4},    {1, 17, 7},     {1, 33, 8},    {1, 1024, 65},
                          {2, 31, 9},   {3, 64, 5},    {4, 96, 13},   {5, 1023, 63},  {6, 160, 64},  {7, 128, 66},
                          {8, 65, 130}, {9, 130, 20},  {13, 1056, 6}, {16, 1500, 11}, {17, 513, 33}, {95, 96, 12},
                          {96, 32, 17}, {97, 2080, 9}, {193, 64, 70}};
  for_each_backend([&](BackendFixture& backend) {
    for (const WeightFormat format : kAllFormats) {
      for (Shape s : shapes) {
        if (format == WeightFormat::kMxfp4) s.in = (s.in + 31) / 32 * 32;
        SCOPED_TRACE(::testing::Message()
                     << "format " << int(format) << " T " << s.tokens << " in " << s.in << " out " << s.out);
        Matrix x = Matrix::random(s.tokens, s.in, 1);
        const StoredWeight weight(format, s.out, s.in, 2);
        expect_matches_double(x, weight, run_linear(backend.ctx(), x, weight));
      }
    }
  });
}

TEST(Linear, RowsDoNotDependOnTheBatch) {
  for_each_backend([](BackendFixture& backend) {
    for (const WeightFormat format : kAllFormats) {
      for (const int64_t in : {96, 1120, 2048}) {
        Matrix x = Matrix::random(103, in, 3);
        const StoredWeight weight(format, 75, in, 4);
        const Matrix whole = run_linear(backend.ctx(), x, weight);
        for (const int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 17, 50}) {
          for (int64_t begin = 0; begin + tokens <= 103; begin += 17) {
            Matrix part(tokens, in, 5);
            for (int64_t t = 0; t < tokens; ++t) {
              for (int64_t c = 0; c < in; ++c) part(t, c) = x(begin + t, c);
            }
            const Matrix y = run_linear(backend.ctx(), part, weight);
            for (int64_t t = 0; t < tokens; ++t) {
              ASSERT_TRUE(all_equal_bits(y.row(t), whole.row(begin + t)))
                  << "row " << begin + t << " of 103 against batches of " << tokens << ", format " << int(format);
            }
          }
        }
      }
    }
  });
}

TEST(Linear, OutputsDoNotDependOnOtherMatricesOrThreads) {
  for (const KernelBackend which : available_backends(detect_cpu_features())) {
    for (const int64_t tokens : {1, 5, 40}) {
      Matrix x = Matrix::random(tokens, 512, 5);
      const StoredWeight weights[] = {{WeightFormat::kBF16, 300, 512, 6},
                                      {WeightFormat::kMxfp4, 77, 512, 7},
                                      {WeightFormat::kF32, 1, 512, 8},
                                      {WeightFormat::kF16, 129, 512, 9}};
      BackendFixture alone(which, 1);
      for (const int threads : {1, 2, 5}) {
        BackendFixture backend(which, threads);
        std::vector<Matrix> y;
        for (const StoredWeight& w : weights) y.emplace_back(tokens, w.view().rows);
        std::vector<LinearOutput> outputs;
        for (size_t i = 0; i < 4; ++i) outputs.push_back({weights[i].view(), y[i].view()});
        ASSERT_TRUE(linear(backend.ctx(), {x.view(), outputs}).is_ok());
        for (size_t i = 0; i < 4; ++i) {
          EXPECT_TRUE(all_equal_bits(y[i].values(), run_linear(alone.ctx(), x, weights[i]).values()))
              << kernel_backend_name(which) << " matrix " << i << " with " << threads << " threads, T = " << tokens;
        }
      }
    }
  }
}

// A one-hot x reads single weights back: every backend must decode every stored bit exactly.
TEST(Linear, ReadsGoldenMxfp4Exactly) {
  const Golden golden = Golden::load("golden/ops/mxfp4.safetensors");
  for_each_backend([&](BackendFixture& backend) {
    for (const std::string name : {"all", "mat"}) {
      const GoldenTensor& packed = golden[name + ".packed"];
      const GoldenTensor& value = golden[name + ".value"];
      WeightView weight;
      weight.data = packed.u8.data();
      weight.scale = golden[name + ".scale"].u8.data();
      weight.rows = value.shape[0];
      weight.cols = value.shape[1];
      weight.format = WeightFormat::kMxfp4;
      for (const int64_t tokens : {int64_t{1}, weight.cols}) {
        for (int64_t first = 0; first < weight.cols; first += tokens) {
          Matrix x(tokens, weight.cols, std::vector<float>(static_cast<size_t>(tokens * weight.cols), 0.f));
          for (int64_t t = 0; t < tokens; ++t) x(t, first + t) = 1.f;
          Matrix y(tokens, weight.rows);
          const LinearOutput output{weight, y.view()};
          ASSERT_TRUE(linear(backend.ctx(), {x.view(), {&output, 1}}).is_ok());
          for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t o = 0; o < weight.rows; ++o) {
              ASSERT_EQ(y(t, o), value.f32[static_cast<size_t>(o * weight.cols + first + t)])
                  << name << " row " << o << " column " << first + t;
            }
          }
        }
      }
    }
  });
}

TEST(Linear, InfinityAndNanStayInTheirRow) {
  for_each_backend([](BackendFixture& backend) {
    Matrix x = Matrix::random(8, 40, 10);
    const StoredWeight weight(WeightFormat::kBF16, 9, 40, 11);
    const Matrix clean = run_linear(backend.ctx(), x, weight);
    x(3, 39) = INFINITY;
    x(5, 0) = NAN;
    const Matrix y = run_linear(backend.ctx(), x, weight);
    for (int64_t t = 0; t < 8; ++t) {
      if (t == 3 || t == 5) continue;
      EXPECT_TRUE(all_equal_bits(y.row(t), clean.row(t)));
    }
    for (int64_t o = 0; o < 9; ++o) {
      EXPECT_TRUE(std::isinf(y(3, o)));
      EXPECT_TRUE(std::isnan(y(5, o)));
    }
  });
}

TEST(Linear, NoTokensAndNoMatricesAreFine) {
  for_each_backend([](BackendFixture& backend) {
    Matrix x(0, 32);
    const StoredWeight weight(WeightFormat::kBF16, 4, 32, 1);
    EXPECT_EQ(run_linear(backend.ctx(), x, weight).rows(), 0);
    Matrix one = Matrix::random(1, 32, 1);
    EXPECT_TRUE(linear(backend.ctx(), {one.view(), {}}).is_ok());
  });
}

TEST(Linear, RefusalsNameTheMatrix) {
  BackendFixture backend(KernelBackend::kRef);
  Matrix x = Matrix::random(2, 48, 1);
  Matrix y(2, 5);
  const StoredWeight right(WeightFormat::kBF16, 5, 48, 1);
  const StoredWeight wrong(WeightFormat::kBF16, 5, 32, 1);
  const auto message_of = [&](const WeightView& weight, const MatrixView<float>& out) {
    const LinearOutput outputs[] = {{right.view(), y.view()}, {weight, out}};
    const Status status = linear(backend.ctx(), {x.view(), outputs});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(message_of(wrong.view(), y.view()),
              ::testing::HasSubstr("linear: output 1 weight: expected shape [5, 48], found shape [5, 32]"));
  EXPECT_THAT(message_of(right.view(), y.view().columns(0, 4)),
              ::testing::HasSubstr("linear: output 1 y: expected shape [2, 5], found shape [2, 4]"));
  WeightView packed = right.view();
  packed.format = WeightFormat::kMxfp4;
  EXPECT_THAT(message_of(packed, y.view()), ::testing::HasSubstr("multiple of 32, found 48"));
  MatrixView<float> strided = y.view();
  strided.stride[1] = 2;
  EXPECT_THAT(message_of(right.view(), strided), ::testing::HasSubstr("contiguous last axis"));
}

}  // namespace
}  // namespace tandem::test
