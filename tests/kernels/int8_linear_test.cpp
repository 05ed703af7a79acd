// linear over int8 weights: the sum over codes times the scale of the row, on every backend; and what whole numbers
// promise where AMX tiles multiply them (kernels/amx/int8_linear.h).
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "kernels/dense_case.h"
#include "kernels/linear/linear.h"
#include "support/compare.h"

namespace tandem::test {
namespace {

using Ranges = std::vector<RowRange>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The outputs of all weights side by side.
Matrix run_linear(const ExecContext& ctx, Matrix& x, const std::vector<WeightView>& weights,
                  const Ranges& prefill = {}) {
  int64_t width = 0;
  for (const WeightView& weight : weights) width += weight.rows;
  Matrix y(x.rows(), width);
  std::vector<LinearOutput> outputs;
  int64_t begin = 0;
  for (const WeightView& weight : weights) {
    MatrixView<float> columns = y.view();
    columns.data += begin;
    columns.shape[1] = weight.rows;
    begin += weight.rows;
    outputs.push_back({weight, columns});
  }
  const Status status = linear(ctx, {.x = x.view(), .outputs = outputs, .prefill = prefill});
  EXPECT_TRUE(status.is_ok()) << status.message();
  EXPECT_TRUE(y.padding_is_nan());
  return y;
}

Matrix rows_of(const Matrix& x, int64_t begin, int64_t count) {
  Matrix part(count, x.cols(), 5);
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t c = 0; c < x.cols(); ++c) part(t, c) = x(begin + t, c);
  }
  return part;
}

float largest_magnitude(const std::vector<float>& values) {
  float largest = 0.f;
  for (const float value : values) largest = std::fmax(largest, std::fabs(value));
  return largest;
}

// |y − exact| <= half a unit of the activations' fixed point for each weight, and what f32 rounds: the sum of a backend
// that adds in f32, or the last conversions.
void expect_matches_double(const Matrix& x, const StoredWeight& weight, const Matrix& y) {
  for (int64_t t = 0; t < x.rows(); ++t) {
    const double unit = std::fmax(std::exp2(-22.9) * largest_magnitude(x.row(t)), 0x1p-126);
    for (int64_t o = 0; o < y.cols(); ++o) {
      double exact = 0.0, squares = 0.0, weights = 0.0;
      for (int64_t c = 0; c < x.cols(); ++c) {
        const double product = static_cast<double>(x(t, c)) * static_cast<double>(weight.value(o, c));
        exact += product;
        squares += product * product;
        weights += std::fabs(static_cast<double>(weight.value(o, c)));
      }
      const double rounding = tolerance_f32(x.cols(), static_cast<float>(std::sqrt(squares)));
      ASSERT_LE(std::fabs(static_cast<double>(y(t, o)) - exact), unit / 2 * weights + rounding)
          << "y[" << t << ", " << o << "] of " << x.rows() << " tokens, " << x.cols() << " columns";
    }
  }
}

TEST(Int8Linear, MatchesDoubleForEveryNumberOfTokens) {
  for_each_backend([](BackendFixture& backend) {
    for (const int64_t cols : {1, 63, 65, 130, 448}) {
      const StoredWeight weight(WeightFormat::kInt8, 37, cols, 2);
      for (int64_t tokens = 1; tokens <= 40; ++tokens) {
        Matrix x = Matrix::random(tokens, cols, static_cast<uint32_t>(tokens));
        expect_matches_double(x, weight, run_linear(backend.ctx(), x, {weight.view()}));
      }
    }
    for (const int64_t rows : {1, 15, 16, 17, 31, 32, 33, 47, 64, 70, 257}) {
      const StoredWeight weight(WeightFormat::kInt8, rows, 100, 3);
      for (const int64_t tokens : {1, 4, 5, 33}) {
        Matrix x = Matrix::random(tokens, 100, 4);
        expect_matches_double(x, weight, run_linear(backend.ctx(), x, {weight.view()}));
      }
    }
  });
}

// Sums below 2^24 of whole numbers times a power of two: every backend has them exactly, whatever digits they have.
TEST(Int8Linear, WholeNumbersAreExact) {
  constexpr int64_t kRows = 50, kCols = 100, kTokens = 37;
  std::mt19937 random(5);
  std::vector<int8_t> codes(kRows * 128, 0);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kCols; ++c) {
      codes[static_cast<size_t>(r * 128 + c)] = static_cast<int8_t>(static_cast<int>(random() % 255) - 127);
    }
  }
  const std::vector<float> scales(kRows, 0x1p-9f);
  WeightView weight;
  weight.data = codes.data();
  weight.scale = reinterpret_cast<const uint8_t*>(scales.data());
  weight.rows = kRows;
  weight.cols = kCols;
  weight.format = WeightFormat::kInt8;
  Matrix x(kTokens, kCols);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t c = 0; c < kCols; ++c) x(t, c) = static_cast<float>(static_cast<int>(random() % 2001) - 1000);
  }
  for_each_backend([&](BackendFixture& backend) {
    for (const int64_t tokens : {int64_t{1}, int64_t{3}, int64_t{4}, int64_t{16}, kTokens}) {
      Matrix part = rows_of(x, 0, tokens);
      const Matrix y = run_linear(backend.ctx(), part, {weight});
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t o = 0; o < kRows; ++o) {
          int64_t sum = 0;
          for (int64_t c = 0; c < kCols; ++c) {
            sum += static_cast<int64_t>(x(t, c)) * codes[static_cast<size_t>(o * 128 + c)];
          }
          ASSERT_EQ(y(t, o), static_cast<float>(sum) * 0x1p-9f) << "y[" << t << ", " << o << "] of " << tokens;
        }
      }
    }
  });
}

// One value in a row of x: whatever its size, it is kept to half a unit; a subnormal one to 2^-127.
TEST(Int8Linear, ExtremeMagnitudesKeepTheirBits) {
  const float values[] = {1.f,
                          8355711.f,
                          8355711.5f,
                          8355712.f,
                          16777215.f,
                          -0x1.fdfdfcp0f,
                          -0x1.fdfdfep0f,
                          0x1.fffffep119f,
                          -0x1.000002p-90f,
                          0x1.234566p-104f,
                          -0x1.fffffep-110f,
                          0x1p-126f,
                          0x1.8p-140f,
                          0.1f};
  const StoredWeight weight(WeightFormat::kInt8, 33, 64, 3);
  Matrix x(std::size(values), 64, std::vector<float>(std::size(values) * 64, 0.f));
  for (size_t t = 0; t < std::size(values); ++t) x(static_cast<int64_t>(t), static_cast<int64_t>(3 * t)) = values[t];
  for_each_backend([&](BackendFixture& backend) {
    for (int64_t t = -1; t < x.rows(); ++t) {  // −1: all together
      Matrix part = t < 0 ? x : rows_of(x, t, 1);
      const Matrix y = run_linear(backend.ctx(), part, {weight.view()});
      for (int64_t i = 0; i < part.rows(); ++i) {
        const int64_t token = t < 0 ? i : t;
        const double value = static_cast<double>(values[token]);
        for (int64_t o = 0; o < 33; ++o) {
          const double w = static_cast<double>(weight.value(o, 3 * token));
          const double unit = std::fmax(std::exp2(-22.9) * std::fabs(value), 0x1p-126);
          // Behind it the product with the scale is rounded; subnormal results have 2^-149.
          ASSERT_NEAR(static_cast<double>(y(i, o)), value * w,
                      unit / 2 * std::fabs(w) + std::fabs(value * w) * 0x1p-23 + 128 * 0x1p-149)
              << values[token];
        }
      }
    }
  });
}

TEST(Int8Linear, RowsDependOnNothingElse) {
  for_each_backend([](BackendFixture& backend) {
    const StoredWeight first(WeightFormat::kInt8, 75, 160, 4);
    const StoredWeight second(WeightFormat::kBF16, 40, 160, 5);
    const StoredWeight third(WeightFormat::kInt8, 9, 160, 6);
    Matrix x = Matrix::random(103, 160, 7);
    const std::vector<WeightView> all = {first.view(), second.view(), third.view()};
    const Matrix whole = run_linear(backend.ctx(), x, all);
    for (const int64_t tokens : {1, 2, 3, 4, 5, 6, 15, 16, 17, 33, 40}) {
      for (int64_t begin = 0; begin + tokens <= 103; begin += 31) {
        Matrix part = rows_of(x, begin, tokens);
        const Matrix y = run_linear(backend.ctx(), part, all);
        for (int64_t t = 0; t < tokens; ++t) {
          ASSERT_TRUE(all_equal_bits(y.row(t), whole.row(begin + t))) << "row " << begin + t << " of " << tokens;
        }
      }
    }
    // Beside other matrices or alone.
    const Matrix alone = run_linear(backend.ctx(), x, {first.view()});
    for (int64_t t = 0; t < 103; ++t) {
      const std::vector<float> row = whole.row(t);
      ASSERT_TRUE(all_equal_bits(alone.row(t), {row.begin(), row.begin() + 75})) << "row " << t;
    }
  });
}

TEST(Int8Linear, ThreadsChangeNothing) {
  for (const KernelBackend which : available_backends(detect_cpu_features())) {
    const StoredWeight weight(WeightFormat::kInt8, 700, 320, 7);
    BackendFixture one(which, 1), five(which, 5);
    for (const int64_t tokens : {1, 4, 9, 90}) {
      Matrix x = Matrix::random(tokens, 320, 8);
      EXPECT_TRUE(all_equal_bits(run_linear(one.ctx(), x, {weight.view()}).values(),
                                 run_linear(five.ctx(), x, {weight.view()}).values()))
          << kernel_backend_name(which) << ", " << tokens << " tokens";
    }
  }
}

TEST(Int8Linear, WhatIsNotFiniteStaysInItsRow) {
  for_each_backend([](BackendFixture& backend) {
    StoredWeight weight(WeightFormat::kInt8, 40, 96, 4);
    for (const int64_t tokens : {1, 4, 20}) {
      Matrix x = Matrix::random(tokens, 96, 9);
      const Matrix clean = run_linear(backend.ctx(), x, {weight.view()});
      for (const float wrong : {kNan, kInfinity, -kInfinity}) {
        Matrix poisoned = x;
        poisoned(tokens / 2, 70) = wrong;
        const Matrix y = run_linear(backend.ctx(), poisoned, {weight.view()});
        for (int64_t t = 0; t < tokens; ++t) {
          if (t != tokens / 2) {
            ASSERT_TRUE(all_equal_bits(y.row(t), clean.row(t))) << "row " << t << " beside " << wrong;
            continue;
          }
          for (const float value : y.row(t)) ASSERT_FALSE(std::isfinite(value)) << wrong;
        }
      }
      std::vector<float> scales(40);
      std::memcpy(scales.data(), weight.view().scale, 40 * sizeof(float));
      scales[33] = kNan;
      WeightView with_nan = weight.view();
      with_nan.scale = reinterpret_cast<const uint8_t*>(scales.data());
      const Matrix y = run_linear(backend.ctx(), x, {with_nan});
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t o = 0; o < 40; ++o) {
          if (o == 33) {
            ASSERT_TRUE(std::isnan(y(t, o)));
          } else {
            ASSERT_EQ(y(t, o), clean(t, o)) << "row of weights " << o;
          }
        }
      }
    }
  });
}

TEST(Int8Linear, ScalesMustBeThere) {
  BackendFixture backend(KernelBackend::kPortable);
  const StoredWeight weight(WeightFormat::kInt8, 4, 32, 7);
  WeightView without = weight.view();
  without.scale = nullptr;
  Matrix x = Matrix::random(2, 32, 8);
  Matrix y(2, 4);
  const LinearOutput output{without, y.view()};
  const Status status = linear(backend.ctx(), {.x = x.view(), .outputs = {&output, 1}});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("expected int8 scales"));
}

// A prompt's rows and decodes are the same rows: whole numbers have one sum.
TEST(Int8Linear, TilesGiveOneResultInEveryMode) {
  if (!detect_cpu_features().amx) GTEST_SKIP() << "this CPU has no AMX, or the system does not let a process use it";
  BackendFixture backend(KernelBackend::kAmx);
  const StoredWeight weight(WeightFormat::kInt8, 75, 160, 4);
  Matrix x = Matrix::random(50, 160, 7);
  const Matrix decode = run_linear(backend.ctx(), x, {weight.view()});
  for (const Ranges& prefill : {Ranges{{0, 50}}, {{3, 20}}, {{0, 1}, {30, 50}}}) {
    EXPECT_TRUE(all_equal_bits(run_linear(backend.ctx(), x, {weight.view()}, prefill).values(), decode.values()));
  }
}

// The widest matrix whose sums fit, with the largest digits in every column; and one that is wider.
TEST(Int8Linear, WideSumsDoNotOverflow) {
  if (!detect_cpu_features().amx) GTEST_SKIP() << "this CPU has no AMX, or the system does not let a process use it";
  BackendFixture backend(KernelBackend::kAmx);
  for (const int64_t cols : {int64_t{131072}, int64_t{131072 + 64}}) {
    const std::vector<int8_t> codes(static_cast<size_t>(17 * cols), -127);
    const std::vector<float> scales(17, 0x1p-7f);
    WeightView weight;
    weight.data = codes.data();
    weight.scale = reinterpret_cast<const uint8_t*>(scales.data());
    weight.rows = 17;
    weight.cols = cols;
    weight.format = WeightFormat::kInt8;
    for (const float value : {0x1.0202p0f /* digits 65, −127, −128 */, 0x1.fdfdfcp0f /* 127, 127, 127 */}) {
      Matrix x(5, cols, std::vector<float>(static_cast<size_t>(5 * cols), value));
      const Matrix y = run_linear(backend.ctx(), x, {weight});
      const double exact = -127.0 * 0x1p-7 * static_cast<double>(value) * static_cast<double>(cols);
      // On tiles only the last conversions round; beyond them an f32 sum does, a term at a time.
      const double bound = std::fabs(exact) * (cols > 131072 ? static_cast<double>(cols) * 0x1p-24 : 0x1p-22);
      for (const float sum : y.values()) ASSERT_NEAR(static_cast<double>(sum), exact, bound) << cols << " columns";
    }
  }
}

}  // namespace
}  // namespace tandem::test
