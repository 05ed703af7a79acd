// Rows of prompts (kernels/row_ranges.h) through linear and moe_experts: the same function within f32 rounding, and
// bits that depend on nothing but the row and its being a prompt's.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "kernels/dense_case.h"
#include "kernels/linear/linear.h"
#include "kernels/moe/experts.h"
#include "support/compare.h"

namespace tandem::test {
namespace {

using Ranges = std::vector<RowRange>;

Matrix run_linear(const ExecContext& ctx, Matrix& x, const std::vector<const StoredWeight*>& weights,
                  const Ranges& prefill) {
  int64_t width = 0;
  for (const StoredWeight* weight : weights) width += weight->view().rows;
  Matrix y(x.rows(), width);
  std::vector<LinearOutput> outputs;
  int64_t begin = 0;
  for (const StoredWeight* weight : weights) {
    MatrixView<float> columns = y.view();
    columns.data += begin;
    columns.shape[1] = weight->view().rows;
    begin += weight->view().rows;
    outputs.push_back({weight->view(), columns});
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

TEST(PrefillRows, LinearMatchesDoubleAroundEveryTileEdge) {
  struct Shape {
    int64_t tokens, in, out;
  };
  const Shape shapes[] = {{1, 1, 1},      {1, 31, 15},  {1, 32, 16},  {2, 33, 17},   {15, 64, 31},  {16, 96, 32},
                          {17, 1024, 33}, {31, 65, 48}, {32, 63, 64}, {33, 160, 65}, {48, 32, 257}, {70, 2080, 20}};
  for_each_backend([&](BackendFixture& backend) {
    for (const WeightFormat format : kAllFormats) {
      for (Shape s : shapes) {
        if (format == WeightFormat::kMxfp4) s.in = (s.in + 31) / 32 * 32;
        SCOPED_TRACE(::testing::Message()
                     << "format " << int(format) << " T " << s.tokens << " in " << s.in << " out " << s.out);
        Matrix x = Matrix::random(s.tokens, s.in, 1);
        const StoredWeight weight(format, s.out, s.in, 2);
        const Matrix y = run_linear(backend.ctx(), x, {&weight}, {{0, s.tokens}});
        for (int64_t t = 0; t < s.tokens; ++t) {
          for (int64_t o = 0; o < s.out; ++o) {
            double exact = 0.0, magnitude = 0.0;
            for (int64_t c = 0; c < s.in; ++c) {
              const double product = static_cast<double>(x(t, c)) * static_cast<double>(weight.value(o, c));
              exact += product;
              magnitude += product * product;
            }
            // The longest sum has three terms for each column.
            ASSERT_LE(std::fabs(static_cast<double>(y(t, o)) - exact),
                      tolerance_f32(3 * s.in, static_cast<float>(std::sqrt(magnitude))))
                << "y[" << t << ", " << o << "]";
          }
        }
      }
    }
  });
}

// Activations of every size: the parts of the split lie far apart.
TEST(PrefillRows, LinearKeepsTheBitsOfAnActivation) {
  for_each_backend([&](BackendFixture& backend) {
    StoredWeight ones(WeightFormat::kBF16, 16, 64, 3);
    Matrix x(8, 64, std::vector<float>(8 * 64, 0.f));
    const float values[8] = {
        1.0f + 0x1p-23f, -3.14159274f, 1e-20f * (1 + 0x1p-22f), 16777215.f, 0x1.fffffep100f, -0x1.000002p-90f, 0.1f,
        1.f / 3.f};
    for (int64_t t = 0; t < 8; ++t) x(t, 5 * t) = values[t];
    const Matrix y = run_linear(backend.ctx(), x, {&ones}, {{0, 8}});
    for (int64_t t = 0; t < 8; ++t) {
      for (int64_t o = 0; o < 16; ++o) {
        const double exact = static_cast<double>(values[t]) * static_cast<double>(ones.value(o, 5 * t));
        ASSERT_NEAR(y(t, o), exact, std::fabs(exact) * 0x1p-22) << values[t];
      }
    }
  });
}

TEST(PrefillRows, LinearRowsDependOnNothingElse) {
  for_each_backend([](BackendFixture& backend) {
    const StoredWeight first(WeightFormat::kBF16, 75, 96, 4);
    const StoredWeight second(WeightFormat::kMxfp4, 40, 96, 5);
    const StoredWeight third(WeightFormat::kF32, 9, 96, 6);
    const std::vector<const StoredWeight*> weights = {&first, &second, &third};
    Matrix x = Matrix::random(103, 96, 3);
    const Matrix decode = run_linear(backend.ctx(), x, weights, {});
    const Matrix prefill = run_linear(backend.ctx(), x, weights, {{0, 103}});
    const Matrix mixed = run_linear(backend.ctx(), x, weights, {{3, 40}, {60, 61}, {90, 103}});
    for (int64_t t = 0; t < 103; ++t) {
      const bool is_prefill = (t >= 3 && t < 40) || t == 60 || t >= 90;
      ASSERT_TRUE(all_equal_bits(mixed.row(t), (is_prefill ? prefill : decode).row(t))) << "row " << t;
    }
    for (const int64_t tokens : {1, 2, 15, 16, 17, 33}) {
      for (int64_t begin = 0; begin + tokens <= 103; begin += 29) {
        Matrix part = rows_of(x, begin, tokens);
        const Matrix y = run_linear(backend.ctx(), part, weights, {{0, tokens}});
        for (int64_t t = 0; t < tokens; ++t) {
          ASSERT_TRUE(all_equal_bits(y.row(t), prefill.row(begin + t))) << "row " << begin + t << " of " << tokens;
        }
      }
    }
    Matrix poisoned = x;
    for (int64_t c = 0; c < 96; ++c) poisoned(50, c) = std::numeric_limits<float>::quiet_NaN();
    const Matrix beside = run_linear(backend.ctx(), poisoned, weights, {{0, 103}});
    for (int64_t t = 0; t < 103; ++t) {
      if (t == 50) {
        EXPECT_TRUE(std::isnan(beside(t, 0)));
      } else {
        ASSERT_TRUE(all_equal_bits(beside.row(t), prefill.row(t))) << "row " << t << " beside NaN";
      }
    }
  });
}

TEST(PrefillRows, ThreadsChangeNothing) {
  for (const KernelBackend which : available_backends(detect_cpu_features())) {
    const StoredWeight weight(WeightFormat::kBF16, 700, 160, 7);
    Matrix x = Matrix::random(90, 160, 8);
    BackendFixture one(which, 1), five(which, 5);
    EXPECT_TRUE(all_equal_bits(run_linear(one.ctx(), x, {&weight}, {{0, 90}}).values(),
                               run_linear(five.ctx(), x, {&weight}, {{0, 90}}).values()))
        << kernel_backend_name(which);
  }
}

TEST(PrefillRows, WrongRangesAreRefused) {
  BackendFixture backend(KernelBackend::kPortable);
  const StoredWeight weight(WeightFormat::kBF16, 4, 32, 7);
  Matrix x = Matrix::random(5, 32, 8);
  Matrix y(5, 4);
  const LinearOutput output{weight.view(), y.view()};
  for (const Ranges& wrong : {Ranges{{0, 6}}, {{-1, 2}}, {{2, 2}}, {{3, 4}, {0, 1}}, {{0, 2}, {2, 3}}}) {
    const Status status = linear(backend.ctx(), {.x = x.view(), .outputs = {&output, 1}, .prefill = wrong});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), ::testing::HasSubstr("ranges of rows"));
  }
}

struct ExpertCase {
  std::vector<StoredWeight> w1, w3, w2;
  std::vector<ExpertWeights> views;
  std::vector<int32_t> ids;
  int64_t k = 0;
  Matrix weights{0, 1}, z{0, 1};

  ExpertCase(int64_t T, int64_t slots, int64_t E, int64_t Dl, int64_t I, WeightFormat format) : k(slots) {
    for (int64_t e = 0; e < E; ++e) {
      const auto seed = static_cast<uint32_t>(10 * e);
      w1.emplace_back(format, I, Dl, seed + 1);
      w3.emplace_back(format, I, Dl, seed + 2);
      w2.emplace_back(format, Dl, I, seed + 3);
    }
    for (size_t e = 0; e < w1.size(); ++e) views.push_back({w1[e].view(), w3[e].view(), w2[e].view()});
    std::mt19937 random(99);
    for (int64_t t = 0; t < T; ++t) {
      const auto first = static_cast<int32_t>(random() % static_cast<uint32_t>(E));
      for (int64_t j = 0; j < k; ++j) ids.push_back(static_cast<int32_t>((first + 2 * j) % E));
    }
    weights = Matrix::random(T, k, 98, 0.5f);
    z = Matrix::random(T, Dl, 97, 0.1f);
  }
  MoeExpertsArgs args(Matrix& out) {
    MoeExpertsArgs args;
    args.z = z.view();
    args.topk_ids = MatrixView<const int32_t>::contiguous(ids.data(), {z.rows(), k});
    args.topk_weights = weights.view();
    args.experts = views;
    args.act = {GatedAct::kSitu, 4.f, 25.f};
    args.out = out.view();
    return args;
  }
  Matrix run(const ExecContext& ctx, const Ranges& prefill) {
    Matrix out(z.rows(), z.cols());
    MoeExpertsArgs with = args(out);
    with.prefill = prefill;
    const Status status = moe_experts(ctx, with);
    EXPECT_TRUE(status.is_ok()) << status.message();
    EXPECT_TRUE(out.padding_is_nan());
    return out;
  }
};

TEST(PrefillRows, ExpertsAreTheSameFunctionAndRowsDependOnNothingElse) {
  for_each_backend([](BackendFixture& backend) {
    for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kBF16, WeightFormat::kF32}) {
      ExpertCase c(75, 3, 7, 96, 160, format);
      const Matrix decode = c.run(backend.ctx(), {});
      const Matrix prefill = c.run(backend.ctx(), {{0, 75}});
      float largest = 0.f;
      for (const float value : decode.values()) largest = std::fmax(largest, std::fabs(value));
      // Sums over 3·96 and 3·160 terms; the activation between them is steeper than 1 by at most its two caps' slopes.
      EXPECT_TRUE(all_close(prefill.values(), decode.values(), 4 * tolerance_f32(3 * (96 + 160), largest)));
      const Matrix mixed = c.run(backend.ctx(), {{0, 20}, {33, 60}});
      for (int64_t t = 0; t < 75; ++t) {
        const bool is_prefill = t < 20 || (t >= 33 && t < 60);
        ASSERT_TRUE(all_equal_bits(mixed.row(t), (is_prefill ? prefill : decode).row(t)))
            << "row " << t << " format " << int(format);
      }
    }
  });
}

TEST(PrefillRows, PartsOfTheExpertsGiveTheBitsOfAll) {
  for_each_backend([](BackendFixture& backend) {
    ExpertCase c(40, 3, 9, 64, 96, WeightFormat::kMxfp4);
    const Matrix whole = c.run(backend.ctx(), {{0, 40}});
    Matrix out(40, 64);
    const int64_t cuts[] = {0, 1, 2, 2, 7, 9};
    const RowRange all{0, 40};
    for (size_t i = 0; i + 1 < std::size(cuts); ++i) {
      MoeExpertsArgs part = c.args(out);
      part.expert_begin = cuts[i];
      part.expert_end = cuts[i + 1];
      part.add_to_out = i > 0;
      part.prefill = {&all, 1};
      ASSERT_TRUE(moe_experts(backend.ctx(), part).is_ok());
    }
    EXPECT_TRUE(all_equal_bits(out.values(), whole.values()));
  });
}

// More token tiles than the scratch holds at once: experts are split between chunks, and no sum changes its order.
TEST(PrefillRows, AManyTokenCallEqualsItsRows) {
  if (!detect_cpu_features().amx) GTEST_SKIP() << "this CPU has no AMX, or the system does not let a process use it";
  BackendFixture backend(KernelBackend::kAmx);
  ExpertCase c(1400, 4, 8, 2048, 64, WeightFormat::kMxfp4);
  const Matrix whole = c.run(backend.ctx(), {{0, 1400}});
  for (const int64_t begin : {0, 500, 1384}) {
    ExpertCase part(0, 4, 8, 2048, 64, WeightFormat::kMxfp4);
    part.z = rows_of(c.z, begin, 16);
    part.weights = rows_of(c.weights, begin, 16);
    part.ids.assign(c.ids.begin() + 4 * begin, c.ids.begin() + 4 * (begin + 16));
    const Matrix rows = part.run(backend.ctx(), {{0, 16}});
    for (int64_t t = 0; t < 16; ++t) ASSERT_TRUE(all_equal_bits(rows.row(t), whole.row(begin + t))) << begin + t;
  }
}

TEST(PrefillRows, TilesAreTriedWhereTheProcessorHasThem) {
  if (!detect_cpu_features().amx) GTEST_SKIP() << "this CPU has no AMX, or the system does not let a process use it";
  const Result<KernelTable> best = make_kernel_table(detect_cpu_features(), std::nullopt);
  ASSERT_TRUE(best.is_ok());
  EXPECT_EQ(best.value().backend, KernelBackend::kAmx);
  EXPECT_NE(best.value().linear_prefill, nullptr);
  EXPECT_NE(best.value().moe_experts_prefill, nullptr);
}

}  // namespace
}  // namespace tandem::test
