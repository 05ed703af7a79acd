#include "kernels/norm/norm.h"

#include <gmock/gmock.h>

#include "kernels/dense_case.h"
#include "support/compare.h"
#include "support/golden.h"

namespace tandem::test {
namespace {

using VectorOfWeight = std::vector<float>;

VectorView<const float> as_vector(const VectorOfWeight& values) {
  return VectorView<const float>::contiguous(values.data(), {static_cast<int64_t>(values.size())});
}

TEST(Norm, Golden) {
  const Golden golden = Golden::load("golden/ops/norms.safetensors");
  const int64_t T = golden["x"].shape[0];
  const int64_t D = golden["x"].shape[1];
  for_each_backend([&](BackendFixture& backend) {
    Matrix x(T, D, golden["x"].f32);
    Matrix gate(T, D, golden["gate"].f32);
    Matrix out(T, D);
    const auto expect_golden = [&](const std::string& name, const Status& status) {
      EXPECT_TRUE(status.is_ok()) << status.message();
      const std::vector<float>& expected = golden[name].f32;
      EXPECT_TRUE(all_close(out.values(), expected, tolerance_f32(D, max_abs(expected)))) << name;
      EXPECT_TRUE(out.padding_is_nan());
    };
    const VectorView<const float> w = as_vector(golden["w"].f32);
    expect_golden("rms_eps1e-5", rms_norm(backend.ctx(), {x.view(), w, 1e-5f, out.view()}));
    expect_golden("rms_eps1e-6", rms_norm(backend.ctx(), {x.view(), w, 1e-6f, out.view()}));
    expect_golden("rms_gated_sigmoid_eps1e-5",
                  rms_norm_gated(backend.ctx(), {x.view(), gate.view(), w, 1e-5f, out.view()}));
    expect_golden("l2norm_eps1e-6", l2_norm(backend.ctx(), {x.view(), 1e-6f, out.view()}));
  });
}

// o_norm and its gate, computed by hand in double precision (model.md §9).
TEST(Norm, GatedVector) {
  for_each_backend([](BackendFixture& backend) {
    Matrix x(1, 4, {1.f, -2.f, 3.f, 0.5f});
    Matrix gate(1, 4, {0.f, 1.f, -1.f, 2.f});
    const std::vector<float> w = {1.f, 0.5f, 2.f, 1.f};
    Matrix out(1, 4);
    ASSERT_TRUE(rms_norm_gated(backend.ctx(), {x.view(), gate.view(), as_vector(w), 1e-5f, out.view()}).is_ok());
    const std::vector<float> expected = {0.264906100f, -0.387323753f, 0.854930676f, 0.233328518f};
    EXPECT_TRUE(all_close(out.values(), expected, tolerance_f32(4, 1.f)));
  });
}

TEST(Norm, MatchesDoubleAtEveryWidthInPlaceAndOnManyRows) {
  for_each_backend([](BackendFixture& backend) {
    for (const int64_t D : {1, 3, 4, 7, 8, 9, 15, 16, 17, 63, 64, 65, 129, 1000}) {
      for (const int64_t T : {0, 1, 2, 37}) {
        Matrix x = Matrix::random(T, D, 7, 3.f);
        const Matrix source = x;
        const std::vector<float> w = Matrix::random(1, D, 8).values();
        ASSERT_TRUE(rms_norm(backend.ctx(), {x.view(), as_vector(w), 1e-5f, x.view()}).is_ok());
        Matrix unit = source;
        ASSERT_TRUE(l2_norm(backend.ctx(), {unit.view(), 1e-6f, unit.view()}).is_ok());
        for (int64_t t = 0; t < T; ++t) {
          double squares = 0.0;
          for (int64_t d = 0; d < D; ++d)
            squares += static_cast<double>(source(t, d)) * static_cast<double>(source(t, d));
          for (int64_t d = 0; d < D; ++d) {
            const double value = static_cast<double>(source(t, d));
            const double rms = value / std::sqrt(squares / static_cast<double>(D) + 1e-5) * static_cast<double>(w[d]);
            ASSERT_NEAR(x(t, d), rms, tolerance_f32(D, static_cast<float>(std::fabs(rms)) + 1e-6f));
            ASSERT_NEAR(unit(t, d), value / std::sqrt(squares + 1e-6), tolerance_f32(D, 1.f));
          }
        }
        EXPECT_TRUE(x.padding_is_nan());
      }
    }
  });
}

TEST(Norm, ZeroRowsGiveZerosAndTinyRowsDoNotVanish) {
  for_each_backend([](BackendFixture& backend) {
    Matrix x(2, 20, std::vector<float>(40, 0.f));
    for (int64_t d = 0; d < 20; ++d) x(1, d) = 1e-4f;
    Matrix out(2, 20);
    ASSERT_TRUE(l2_norm(backend.ctx(), {x.view(), 1e-6f, out.view()}).is_ok());
    // eps is added to the sum: 1e-4 / sqrt(20e-8 + 1e-6)
    const auto tiny = static_cast<float>(1e-4 / std::sqrt(20e-8 + 1e-6));
    for (int64_t d = 0; d < 20; ++d) {
      EXPECT_EQ(out(0, d), 0.f);
      EXPECT_NEAR(out(1, d), tiny, tolerance_f32(20, tiny));
    }
  });
}

TEST(Norm, RefusesMismatchedShapes) {
  BackendFixture backend(KernelBackend::kRef);
  Matrix x = Matrix::random(2, 8, 1);
  Matrix out(2, 8);
  const std::vector<float> w(7, 1.f);
  const Status status = rms_norm(backend.ctx(), {x.view(), as_vector(w), 1e-5f, out.view()});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("rms_norm: weight: expected shape [8], found shape [7]"));
  EXPECT_FALSE(l2_norm(backend.ctx(), {x.view(), 1e-6f, out.view().rows(0, 1)}).is_ok());
  EXPECT_FALSE(
      rms_norm_gated(backend.ctx(), {x.view(), out.view().columns(0, 7), as_vector(w), 1e-5f, out.view()}).is_ok());
}

// Without eps, rows of zeros would give NaN.
TEST(Norm, RefusesEpsThatIsNotPositive) {
  BackendFixture backend(KernelBackend::kRef);
  Matrix x = Matrix::random(2, 8, 1);
  Matrix out(2, 8);
  const std::vector<float> w(8, 1.f);
  for (const float eps : {0.f, -1e-6f, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_THAT(rms_norm(backend.ctx(), {x.view(), as_vector(w), eps, out.view()}).message(),
                ::testing::HasSubstr("rms_norm: eps: expected a value > 0, found "));
    EXPECT_EQ(rms_norm_gated(backend.ctx(), {x.view(), x.view(), as_vector(w), eps, out.view()}).code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(l2_norm(backend.ctx(), {x.view(), eps, out.view()}).code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace tandem::test
