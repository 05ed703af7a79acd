#include "kernels/moe/experts.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/dense_case.h"
#include "support/compare.h"

namespace tandem::test {
namespace {

struct Expert {
  StoredWeight w1, w3, w2;
};

struct Case {
  std::vector<Expert> experts;
  std::vector<ExpertWeights> views;
  std::vector<int32_t> ids;
  Matrix weights{0, 1};
  Matrix z{0, 1};
  GatedActParams act{GatedAct::kSitu, 4.f, 25.f};
  ExpertAct expert_act = ExpertAct::kF32;
  int64_t expert_begin = 0;
  int64_t expert_end = std::numeric_limits<int32_t>::max();
  bool add_to_out = false;

  Case(int64_t T, int64_t k, int64_t E, int64_t Dl, int64_t I, WeightFormat format, WeightFormat down, uint32_t seed) {
    std::mt19937 engine(seed);
    const auto draw = [&] { return static_cast<uint32_t>(engine()); };
    for (int64_t e = 0; e < E; ++e) {
      experts.push_back({{format, I, Dl, draw()}, {format, I, Dl, draw()}, {down, Dl, I, draw()}});
    }
    for (const Expert& e : experts) views.push_back({e.w1.view(), e.w3.view(), e.w2.view()});
    std::vector<int32_t> all(static_cast<size_t>(E));
    std::iota(all.begin(), all.end(), 0);
    for (int64_t t = 0; t < T; ++t) {
      std::shuffle(all.begin(), all.end(), engine);
      ids.insert(ids.end(), all.begin(), all.begin() + k);
    }
    weights = Matrix::random(T, k, draw(), 0.5f);
    z = Matrix::random(T, Dl, draw(), 0.1f);  // keeps SiTU in its curved range: Dl products of unit weights
  }

  Status run(const ExecContext& ctx, Matrix& out) {
    MoeExpertsArgs args;
    args.z = z.view();
    args.topk_ids = MatrixView<const int32_t>::contiguous(ids.data(), {z.rows(), weights.cols()});
    args.topk_weights = weights.view();
    args.experts = views;
    args.act = act;
    args.expert_act = expert_act;
    args.expert_begin = expert_begin;
    args.expert_end = expert_end;
    args.add_to_out = add_to_out;
    args.out = out.view();
    return moe_experts(ctx, args);
  }
  Matrix run(const ExecContext& ctx) {
    Matrix out(z.rows(), z.cols());
    const Status status = run(ctx, out);
    EXPECT_TRUE(status.is_ok()) << status.message();
    EXPECT_TRUE(out.padding_is_nan());
    return out;
  }
  // Rows `rows` of this case as a case of its own.
  Case pick(const std::vector<int64_t>& rows) const {
    Case part = *this;
    const int64_t k = weights.cols();
    part.ids.clear();
    part.weights = Matrix(static_cast<int64_t>(rows.size()), k);
    part.z = Matrix(static_cast<int64_t>(rows.size()), z.cols());
    part.views.clear();
    for (const Expert& e : part.experts) part.views.push_back({e.w1.view(), e.w3.view(), e.w2.view()});
    for (size_t i = 0; i < rows.size(); ++i) {
      for (int64_t j = 0; j < k; ++j) {
        part.ids.push_back(ids[static_cast<size_t>(rows[i] * k + j)]);
        part.weights(static_cast<int64_t>(i), j) = weights(rows[i], j);
      }
      for (int64_t d = 0; d < z.cols(); ++d) part.z(static_cast<int64_t>(i), d) = z(rows[i], d);
    }
    return part;
  }
};

double activate(const GatedActParams& p, double gate, double up) {
  const double s = 1 / (1 + std::exp(-gate));
  if (p.kind == GatedAct::kSwiGlu) return gate * s * up;
  const double b1 = static_cast<double>(p.beta);
  const double b2 = static_cast<double>(*p.linear_beta);
  return b1 * std::tanh(gate / b1) * s * b2 * std::tanh(up / b2);
}

std::vector<double> product(const StoredWeight& w, const std::vector<double>& x) {
  std::vector<double> y(static_cast<size_t>(w.view().rows), 0.0);
  for (size_t o = 0; o < y.size(); ++o) {
    for (size_t c = 0; c < x.size(); ++c)
      y[o] += static_cast<double>(w.value(static_cast<int64_t>(o), static_cast<int64_t>(c))) * x[c];
  }
  return y;
}

std::vector<double> rounded(const std::vector<double>& x) {
  std::vector<float> f(x.begin(), x.end());
  mxfp8_round(f);
  return {f.begin(), f.end()};
}

std::vector<double> expected_row(const Case& c, int64_t t) {
  std::vector<double> z, out(static_cast<size_t>(c.z.cols()), 0.0);
  for (int64_t d = 0; d < c.z.cols(); ++d) z.push_back(static_cast<double>(c.z(t, d)));
  if (c.expert_act == ExpertAct::kMxfp8) z = rounded(z);
  for (int64_t j = 0; j < c.weights.cols(); ++j) {
    const Expert& e = c.experts[static_cast<size_t>(c.ids[static_cast<size_t>(t * c.weights.cols() + j)])];
    std::vector<double> hidden = product(e.w1, z);
    const std::vector<double> up = product(e.w3, z);
    for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = activate(c.act, hidden[i], up[i]);
    if (c.expert_act == ExpertAct::kMxfp8) hidden = rounded(hidden);
    const std::vector<double> down = product(e.w2, hidden);
    for (size_t d = 0; d < out.size(); ++d) out[d] += static_cast<double>(c.weights(t, j)) * down[d];
  }
  return out;
}

void expect_close_to_double(const Case& c, const Matrix& out, float tolerance_factor = 1.f) {
  const int64_t I = c.experts[0].w1.view().rows;
  for (int64_t t = 0; t < out.rows(); ++t) {
    const std::vector<double> exact = expected_row(c, t);
    double largest = 0.0;
    for (const double v : exact) largest = std::fmax(largest, std::fabs(v));
    const float tolerance = tolerance_factor * tolerance_f32(c.z.cols() + I, static_cast<float>(largest));
    for (int64_t d = 0; d < out.cols(); ++d)
      ASSERT_NEAR(out(t, d), exact[static_cast<size_t>(d)], tolerance) << "row " << t << " column " << d;
  }
}

TEST(Experts, MatchDoubleInEveryFormat) {
  for_each_backend([](BackendFixture& backend) {
    for (const WeightFormat format : kAllFormats) {
      for (const int64_t T : {1, 2, 9, 40}) {
        Case c(T, 3, 5, 64, 96, format, format, 11);
        expect_close_to_double(c, c.run(backend.ctx()));
      }
    }
    Case mixed(7, 2, 4, 96, 64, WeightFormat::kMxfp4, WeightFormat::kBF16, 12);
    expect_close_to_double(mixed, mixed.run(backend.ctx()));
    Case odd(30, 2, 3, 37, 51, WeightFormat::kBF16, WeightFormat::kF16, 13);
    odd.act = {GatedAct::kSwiGlu, 1.f, std::nullopt};
    expect_close_to_double(odd, odd.run(backend.ctx()));
    Case wide(8, 1, 1, 1088, 1120, WeightFormat::kMxfp4, WeightFormat::kMxfp4, 14);  // past one column block
    expect_close_to_double(wide, wide.run(backend.ctx()));
    Case crowd(230, 2, 3, 32, 96, WeightFormat::kMxfp4, WeightFormat::kMxfp4, 15);  // past one token block
    expect_close_to_double(crowd, crowd.run(backend.ctx()));
  });
}

// The input is rounded before W1 and W3 exactly as tensor/mxfp4.h says; a hidden value that f32 and double put on two
// sides of a rounding boundary moves by one E4M3 step, 2^-3 of its power of two at most.
TEST(Experts, Mxfp8RoundsBothInputs) {
  for_each_backend([](BackendFixture& backend) {
    for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kBF16}) {
      Case c(12, 2, 4, 64, 96, format, format, 21);
      const Matrix plain = c.run(backend.ctx());
      c.expert_act = ExpertAct::kMxfp8;
      const Matrix out = c.run(backend.ctx());
      int64_t rows_apart = 0;
      for (int64_t t = 0; t < out.rows(); ++t) {
        const std::vector<double> exact = expected_row(c, t);
        double worst = 0.0, largest = 0.0, from_plain = 0.0;
        for (int64_t d = 0; d < out.cols(); ++d) {
          worst = std::fmax(worst, std::fabs(static_cast<double>(out(t, d)) - exact[static_cast<size_t>(d)]));
          largest = std::fmax(largest, std::fabs(exact[static_cast<size_t>(d)]));
          from_plain = std::fmax(from_plain, std::fabs(static_cast<double>(out(t, d) - plain(t, d))));
        }
        rows_apart += worst > static_cast<double>(tolerance_f32(64 + 96, static_cast<float>(largest)));
        EXPECT_GT(from_plain, 1e-3 * largest) << "rounding to three mantissa bits must be visible";
      }
      EXPECT_LE(rows_apart, 1) << "more than one of 12 rows crossed a rounding boundary";
    }
  });
}

TEST(Experts, RowsDoNotDependOnTheBatchOrThreads) {
  for (const KernelBackend which : available_backends(detect_cpu_features())) {
    for (const ExpertAct act : {ExpertAct::kF32, ExpertAct::kMxfp8}) {
      BackendFixture many(which, 3);
      BackendFixture one(which, 1);
      Case c(120, 3, 6, 96, 160, WeightFormat::kMxfp4, WeightFormat::kMxfp4, 31);
      c.expert_act = act;
      const Matrix whole = c.run(many.ctx());
      EXPECT_TRUE(all_equal_bits(whole.values(), c.run(one.ctx()).values())) << kernel_backend_name(which);
      for (const std::vector<int64_t>& rows :
           {std::vector<int64_t>{0}, {119}, {5, 3}, {7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}}) {
        const Matrix out = c.pick(rows).run(many.ctx());
        for (size_t i = 0; i < rows.size(); ++i) {
          EXPECT_TRUE(all_equal_bits(out.row(static_cast<int64_t>(i)), whole.row(rows[i])))
              << kernel_backend_name(which) << " row " << rows[i];
        }
      }
    }
  }
}

TEST(Experts, ATokenThatIsNotFiniteStaysAlone) {
  for_each_backend([](BackendFixture& backend) {
    Case c(9, 2, 3, 160, 96, WeightFormat::kMxfp4, WeightFormat::kMxfp4, 35);
    const Matrix clean = c.run(backend.ctx());
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Case broken = c.pick({0, 1, 2, 3, 4, 5, 6, 7, 8});
      broken.z(4, 130) = bad;
      const Matrix out = broken.run(backend.ctx());
      for (int64_t t = 0; t < 9; ++t) {
        if (t == 4) {
          const std::vector<float> row = out.row(t);
          EXPECT_TRUE(std::any_of(row.begin(), row.end(), [](float v) { return !std::isfinite(v); }));
        } else {
          EXPECT_TRUE(all_equal_bits(out.row(t), clean.row(t))) << "row " << t << " beside " << bad;
        }
      }
    }
  });
}

// Values far below the largest of their token count as much as they weigh, and a token of zeros gives zeros.
TEST(Experts, ValuesOfEverySize) {
  for_each_backend([](BackendFixture& backend) {
    Case c(6, 2, 3, 224, 64, WeightFormat::kMxfp4, WeightFormat::kMxfp4, 36);
    for (int64_t d = 0; d < 224; ++d) {
      c.z(0, d) = 0.f;
      c.z(1, d) = std::ldexp(c.z(1, d), static_cast<int>(-(d % 40)));
      c.z(2, d) = std::ldexp(c.z(2, d), -40);
      c.z(3, d) = d == 200 ? 0.5f : std::ldexp(c.z(3, d), -24);
    }
    const Matrix out = c.run(backend.ctx());
    expect_close_to_double(c, out);
    for (int64_t d = 0; d < 224; ++d) EXPECT_EQ(out(0, d), 0.f);
  });
}

// The contract sums in ascending order of the expert id, whatever the slots' order.
TEST(Experts, SlotOrderChangesNothing) {
  for_each_backend([](BackendFixture& backend) {
    Case c(6, 4, 6, 64, 64, WeightFormat::kMxfp4, WeightFormat::kMxfp4, 41);
    const Matrix first = c.run(backend.ctx());
    for (int64_t t = 0; t < 6; ++t) {
      std::swap(c.ids[static_cast<size_t>(t * 4)], c.ids[static_cast<size_t>(t * 4 + 3)]);
      std::swap(c.weights(t, 0), c.weights(t, 3));
    }
    EXPECT_TRUE(all_equal_bits(c.run(backend.ctx()).values(), first.values()));
  });
}

// Experts that do not fit into memory together are taken in parts; not one bit may tell.
TEST(Experts, PartsOfTheExpertsGiveTheBitsOfAll) {
  for_each_backend([](BackendFixture& backend) {
    for (const int64_t T : {1, 5, 70}) {
      Case c(T, 4, 9, 64, 96, WeightFormat::kMxfp4, WeightFormat::kMxfp4, 47);
      const Matrix whole = c.run(backend.ctx());
      for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{0, 9}, {0, 4, 9}, {0, 1, 2, 2, 7, 9}}) {
        Matrix out(T, 64);
        for (size_t i = 0; i + 1 < cuts.size(); ++i) {
          c.expert_begin = cuts[i];
          c.expert_end = cuts[i + 1];
          c.add_to_out = i > 0;
          const Status status = c.run(backend.ctx(), out);
          ASSERT_TRUE(status.is_ok()) << status.message();
        }
        EXPECT_TRUE(all_equal_bits(out.values(), whole.values())) << T << " tokens, " << cuts.size() - 1 << " parts";
        EXPECT_TRUE(out.padding_is_nan());
      }
      c.expert_begin = 0;
      c.expert_end = 9;
      c.add_to_out = false;
    }
  });
}

TEST(Experts, AnExpertChosenTwiceCountsTwice) {
  for_each_backend([](BackendFixture& backend) {
    Case c(2, 2, 3, 32, 32, WeightFormat::kBF16, WeightFormat::kBF16, 51);
    c.ids = {1, 1, 2, 0};
    expect_close_to_double(c, c.run(backend.ctx()));
  });
}

TEST(Experts, NoTokens) {
  for_each_backend([](BackendFixture& backend) {
    Case c(0, 2, 3, 32, 32, WeightFormat::kBF16, WeightFormat::kBF16, 51);
    EXPECT_EQ(c.run(backend.ctx()).rows(), 0);
  });
}

TEST(Experts, Refusals) {
  BackendFixture backend(KernelBackend::kRef);
  Case c(2, 2, 3, 32, 64, WeightFormat::kBF16, WeightFormat::kBF16, 61);
  Matrix out(2, 32);
  for (const int32_t bad : {-1, 3, 1 << 30}) {
    Case wrong = c;
    wrong.ids[3] = bad;
    const Status status = wrong.run(backend.ctx(), out);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), ::testing::HasSubstr("token 1 slot 1: expected an expert in [0, 3)"));
  }
  Case wide(2, 2, 3, 33, 64, WeightFormat::kBF16, WeightFormat::kBF16, 63);
  wide.z = c.z;
  EXPECT_THAT(wide.run(backend.ctx(), out).message(),
              ::testing::HasSubstr("expert 0 w1: expected shape [64, 32], found shape [64, 33]"));
  Case narrow(1, 1, 1, 33, 32, WeightFormat::kBF16, WeightFormat::kBF16, 62);
  narrow.expert_act = ExpertAct::kMxfp8;
  Matrix narrow_out(1, 33);
  EXPECT_THAT(narrow.run(backend.ctx(), narrow_out).message(),
              ::testing::HasSubstr("multiples of 32 for MXFP8, found 33 and 32"));
  c.views.clear();
  EXPECT_THAT(c.run(backend.ctx(), out).message(), ::testing::HasSubstr("at least one expert"));
}

TEST(Experts, WeightsAreCheckedOnce) {
  Case c(1, 2, 3, 32, 64, WeightFormat::kMxfp4, WeightFormat::kBF16, 61);
  EXPECT_TRUE(check_expert_weights(c.views, 32, 64).is_ok());
  std::vector<ExpertWeights> views = c.views;
  views[2].w2 = views[2].w1;
  EXPECT_THAT(check_expert_weights(views, 32, 64).message(),
              ::testing::HasSubstr("expert 2 w2: expected shape [32, 64], found shape [64, 32]"));
  views = c.views;
  views[1].w3.data = nullptr;
  EXPECT_THAT(check_expert_weights(views, 32, 64).message(),
              ::testing::HasSubstr("expert 1 w3: expected data, found a null pointer"));
  views = c.views;
  views[1].w1.scale = nullptr;
  EXPECT_THAT(check_expert_weights(views, 32, 64).message(),
              ::testing::HasSubstr("expert 1 w1: expected MXFP4 scales, found a null pointer"));
  EXPECT_EQ(check_expert_weights({}, 32, 64).code(), StatusCode::kInvalidArgument);
}

// MXFP8 input with a NaN or an infinity in one lane: the same rows as the reference, and the clean row unharmed.
TEST(Experts, Mxfp8InputsThatAreNotFinite) {
  Case c(3, 2, 3, 64, 64, WeightFormat::kBF16, WeightFormat::kBF16, 71);
  c.expert_act = ExpertAct::kMxfp8;
  BackendFixture reference(KernelBackend::kRef);
  const Matrix clean = c.run(reference.ctx());
  c.z(1, 5) = std::numeric_limits<float>::quiet_NaN();
  c.z(2, 40) = std::numeric_limits<float>::infinity();
  const Matrix expected = c.run(reference.ctx());
  EXPECT_TRUE(all_equal_bits(expected.row(0), clean.row(0)));
  for_each_backend([&](BackendFixture& backend) {
    const Matrix out = c.run(backend.ctx());
    for (int64_t t = 0; t < 3; ++t) {
      for (int64_t d = 0; d < 64; ++d) {
        EXPECT_EQ(std::isnan(out(t, d)), t == 1) << "row " << t << " column " << d;
        if (t == 1) continue;
        // A hidden value may round to the next E4M3 value: one part in 16 of one of the 64 terms.
        EXPECT_NEAR(out(t, d), expected(t, d), max_abs(expected.row(t)) / 16.f) << "row " << t << " column " << d;
      }
    }
  });
}

}  // namespace
}  // namespace tandem::test
