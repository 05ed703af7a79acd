#include "kernels/activation/gated_act.h"

#include <gmock/gmock.h>

#include "kernels/dense_case.h"
#include "support/compare.h"
#include "support/golden.h"

namespace tandem::test {
namespace {

constexpr float kMax = std::numeric_limits<float>::max();

double exact(const GatedActParams& p, double gate, double up) {
  const double s = gate >= 0 ? 1 / (1 + std::exp(-gate)) : std::exp(gate) / (1 + std::exp(gate));
  if (p.kind == GatedAct::kSwiGlu) return gate * s * up;
  const double b1 = static_cast<double>(p.beta);
  const double capped_up =
      p.linear_beta ? static_cast<double>(*p.linear_beta) * std::tanh(up / static_cast<double>(*p.linear_beta)) : up;
  return b1 * std::tanh(gate / b1) * s * capped_up;
}

TEST(GatedAct, Golden) {
  const Golden golden = Golden::load("golden/ops/situ.safetensors");
  const int64_t n = golden["gate"].num_elements();
  for_each_backend([&](BackendFixture& backend) {
    Matrix gate(1, n, golden["gate"].f32);
    Matrix up(1, n, golden["up"].f32);
    Matrix out(1, n);
    const auto check = [&](const std::string& name, const GatedActParams& params) {
      ASSERT_TRUE(gated_act(backend.ctx(), {gate.view(), up.view(), params, out.view()}).is_ok());
      for (int64_t i = 0; i < n; ++i) {
        const float expected = golden[name].f32[static_cast<size_t>(i)];
        ASSERT_NEAR(out(0, i), expected, tolerance_f32(1, std::fabs(expected)))  // relative: every factor is
            << name << " gate " << gate(0, i) << " up " << up(0, i);
      }
    };
    check("b4_lb25", {GatedAct::kSitu, 4.f, 25.f});
    check("b3_lb20", {GatedAct::kSitu, 3.f, 20.f});
    check("b4_nolb", {GatedAct::kSitu, 4.f, std::nullopt});
  });
}

TEST(GatedAct, Vector) {  // model.md §3.9
  for_each_backend([](BackendFixture& backend) {
    Matrix gate(1, 4, {1.f, -2.f, 10.f, 0.5f});
    Matrix up(1, 4, {1.f, 3.f, 50.f, -8.f});
    Matrix out(1, 4);
    ASSERT_TRUE(gated_act(backend.ctx(), {gate.view(), up.view(), {GatedAct::kSitu, 4.f, 25.f}, out.view()}).is_ok());
    const std::vector<float> expected = {0.715817828f, -0.657873819f, 95.108021534f, -2.395728615f};
    for (int64_t i = 0; i < 4; ++i) EXPECT_NEAR(out(0, i), expected[i], tolerance_f32(1, std::fabs(expected[i])));
  });
}

TEST(GatedAct, MatchesDoubleAndStaysInBounds) {
  const float extremes[] = {0.f,  -0.f,  1e-30f, -1e-30f, 1e-3f, -1e-3f, 0.7f, -3.f,
                            11.f, -11.f, 89.f,   -89.f,   700.f, -700.f, kMax, -kMax};
  for_each_backend([&](BackendFixture& backend) {
    for (const GatedActParams& params :
         {GatedActParams{GatedAct::kSitu, 4.f, 25.f}, GatedActParams{GatedAct::kSitu, 0.5f, 3.f},
          GatedActParams{GatedAct::kSwiGlu, 1.f, std::nullopt}}) {
      Matrix gate = Matrix::random(17, 53, 1, 8.f);
      Matrix up = Matrix::random(17, 53, 2, 40.f);
      for (int64_t i = 0; i < 16; ++i) {
        for (int64_t j = 0; j < 16; ++j) {
          gate(i, j) = extremes[i];
          up(i, j) = extremes[j];
        }
      }
      Matrix out(17, 53);
      ASSERT_TRUE(gated_act(backend.ctx(), {gate.view(), up.view(), params, out.view()}).is_ok());
      for (int64_t t = 0; t < 17; ++t) {
        for (int64_t i = 0; i < 53; ++i) {
          if (params.kind == GatedAct::kSitu) {
            ASSERT_LE(std::fabs(out(t, i)), params.beta * *params.linear_beta);
          }
          const double expected = exact(params, static_cast<double>(gate(t, i)), static_cast<double>(up(t, i)));
          if (std::fabs(expected) > static_cast<double>(kMax)) continue;  // SwiGLU of two huge values overflows
          // σ below the smallest normal float may be 0: e^−x of the plain formula overflows there.
          const double factors = params.kind == GatedAct::kSitu
                                     ? static_cast<double>(params.beta * *params.linear_beta)
                                     : std::fabs(static_cast<double>(gate(t, i)) * static_cast<double>(up(t, i)));
          const double flushed = 0x1p-126 * std::fmax(factors, 1.0);  // and a subnormal result has fewer digits
          const double tolerance = static_cast<double>(tolerance_f32(1, static_cast<float>(std::fabs(expected))));
          ASSERT_NEAR(out(t, i), expected, tolerance + flushed) << gate(t, i) << " " << up(t, i);
        }
      }
    }
  });
}

TEST(GatedAct, MayWriteOverEitherInput) {
  for_each_backend([](BackendFixture& backend) {
    const GatedActParams params{GatedAct::kSitu, 4.f, 25.f};
    Matrix gate = Matrix::random(3, 35, 1);
    Matrix up = Matrix::random(3, 35, 2);
    Matrix out(3, 35);
    ASSERT_TRUE(gated_act(backend.ctx(), {gate.view(), up.view(), params, out.view()}).is_ok());
    Matrix over_gate = gate;
    Matrix over_up = up;
    ASSERT_TRUE(gated_act(backend.ctx(), {over_gate.view(), up.view(), params, over_gate.view()}).is_ok());
    ASSERT_TRUE(gated_act(backend.ctx(), {gate.view(), over_up.view(), params, over_up.view()}).is_ok());
    EXPECT_TRUE(all_equal_bits(over_gate.values(), out.values()));
    EXPECT_TRUE(all_equal_bits(over_up.values(), out.values()));
  });
}

TEST(GatedAct, Refusals) {
  BackendFixture backend(KernelBackend::kRef);
  Matrix a = Matrix::random(2, 4, 1);
  EXPECT_THAT(gated_act(backend.ctx(), {a.view(), a.view(), {GatedAct::kSitu, 0.f, 25.f}, a.view()}).message(),
              ::testing::HasSubstr("beta: expected a value > 0, found 0"));
  EXPECT_FALSE(gated_act(backend.ctx(), {a.view(), a.view(), {GatedAct::kSitu, 4.f, -1.f}, a.view()}).is_ok());
  EXPECT_FALSE(gated_act(backend.ctx(), {a.view(), a.view().columns(0, 3), {}, a.view()}).is_ok());
}

}  // namespace
}  // namespace tandem::test
