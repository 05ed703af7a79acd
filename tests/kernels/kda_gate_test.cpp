// The decay gate of kernels/kda/kda.h: public values, goldens over the whole range, strides, aliasing, refusals.
#include <gmock/gmock.h>

#include <random>

#include "kda_case.h"
#include "support/golden.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;

struct GateCase {
  GappedRows z, g;
  std::vector<float> a_log, dt_bias;
  std::optional<float> lower_bound;

  GateCase(int64_t rows, int64_t heads, int64_t key_dim) : z(rows, heads, key_dim), g(rows, heads, key_dim) {}
  KdaGateArgs args() {
    KdaGateArgs args;
    args.z = z.view();
    args.g = g.view();
    args.a_log = VectorView<const float>::contiguous(a_log.data(), {static_cast<int64_t>(a_log.size())});
    args.dt_bias = VectorView<const float>::contiguous(dt_bias.data(), {static_cast<int64_t>(dt_bias.size())});
    args.lower_bound = lower_bound;
    return args;
  }
};

// model.md §3.4: (A_log, z) → g for both forms.
TEST(KdaGate, MatchesTheHandComputedVectors) {
  const float a_log[] = {0.f, 0.5f, 1.2f, -1.f};
  const float z[] = {0.f, 1.f, -0.7f, 3.f};
  const std::vector<float> bounded = {-2.5f, -4.193590758f, -0.445740272f, -3.754705985f};
  const std::vector<float> softplus = {-0.693147181f, -2.165202478f, -1.338624824f, -1.121512611f};
  for_each_backend([&](BackendFixture& backend) {
    GateCase c(1, 4, 1);
    c.z.fill([&](int64_t, int64_t h, int64_t) { return z[h]; });
    c.a_log.assign(a_log, a_log + 4);
    c.dt_bias.assign(4, 0.f);
    c.lower_bound = -5.f;
    ASSERT_TRUE(kda_gate(backend.ctx(), c.args()).is_ok());
    EXPECT_TRUE(all_close(c.g.packed(), bounded, tolerance_f32(1, 5.f)));
    c.lower_bound = std::nullopt;
    ASSERT_TRUE(kda_gate(backend.ctx(), c.args()).is_ok());
    EXPECT_TRUE(all_close(c.g.packed(), softplus, tolerance_f32(1, 5.f)));
  });
}

TEST(KdaGate, MatchesTheGoldensFromMinusToPlusTenThousand) {
  const Golden golden = Golden::load("golden/ops/gates.safetensors");
  const GoldenTensor& z = golden["z"];
  for_each_backend([&](BackendFixture& backend) {
    for (const auto& [name, bound] : {std::pair<std::string, std::optional<float>>{"bounded", -5.f},
                                      {"bounded_m3", -3.f},
                                      {"softplus", std::nullopt}}) {
      SCOPED_TRACE(name);
      GateCase c(z.shape[0], z.shape[1], z.shape[2]);
      c.z.fill([&](int64_t t, int64_t h, int64_t i) {
        return z.f32[static_cast<size_t>((t * z.shape[1] + h) * z.shape[2] + i)];
      });
      c.a_log = golden["A_log"].f32;
      c.dt_bias = golden["dt_bias"].f32;
      c.lower_bound = bound;
      ASSERT_TRUE(kda_gate(backend.ctx(), c.args()).is_ok());
      const std::vector<float> actual = c.g.packed();
      const std::vector<float>& expected = golden[name].f32;
      ASSERT_EQ(actual.size(), expected.size());
      // Element by element: exp's argument A · z carries its own rounding, |A z| · 2^-24 of the result at most.
      for (size_t i = 0; i < actual.size(); ++i) {
        const size_t head = i / static_cast<size_t>(z.shape[2]) % static_cast<size_t>(z.shape[1]);
        const float argument = std::exp(c.a_log[head]) * std::fabs(z.f32[i]) + 1.f;
        const float tolerance = 8 * 0x1p-24f * argument * std::fabs(expected[i]) + std::numeric_limits<float>::min();
        EXPECT_NEAR(actual[i], expected[i], tolerance) << "z " << z.f32[i];
        EXPECT_LE(actual[i], 0.f);
        EXPECT_GE(actual[i], bound.value_or(-std::numeric_limits<float>::infinity()));
      }
    }
  });
}

TEST(KdaGate, SizesAroundTheRegistersStridesAndAliasing) {
  for_each_backend([](BackendFixture& backend) {
    for (const int64_t key_dim : {1, 3, 4, 5, 15, 16, 17, 33}) {
      for (const int64_t rows : {0, 1, 9}) {
        GateCase c(rows, 3, key_dim);
        std::mt19937 rng(static_cast<uint32_t>(key_dim));
        std::normal_distribution<float> normal(0.f, 3.f);
        c.z.fill([&](int64_t, int64_t, int64_t) { return normal(rng); });
        c.a_log = {-1.f, 0.3f, 2.f};
        for (int64_t i = 0; i < 3 * key_dim; ++i) c.dt_bias.push_back(normal(rng));
        c.lower_bound = -5.f;
        ASSERT_TRUE(kda_gate(backend.ctx(), c.args()).is_ok());
        EXPECT_TRUE(c.g.gaps_untouched());
        std::vector<float> expected;
        for (int64_t t = 0; t < rows; ++t) {
          for (int64_t h = 0; h < 3; ++h) {
            for (int64_t i = 0; i < key_dim; ++i) {
              const double a = std::exp(static_cast<double>(c.a_log[static_cast<size_t>(h)]));
              const double x = c.z.at(t, h, i) + c.dt_bias[static_cast<size_t>(h * key_dim + i)];
              expected.push_back(static_cast<float>(-5.0 / (1.0 + std::exp(-a * x))));
            }
          }
        }
        const std::vector<float> actual = c.g.packed();
        // |A z'| reaches about 60, whose rounding the sigmoid's slope (at most 1/4) passes on.
        EXPECT_TRUE(all_close(actual, expected, tolerance_f32(16, 5.f)));
        KdaGateArgs in_place = c.args();
        in_place.g = c.z.view();
        ASSERT_TRUE(kda_gate(backend.ctx(), in_place).is_ok());
        EXPECT_TRUE(all_equal_bits(c.z.packed(), actual));
      }
    }
  });
}

TEST(KdaGate, RefusesWhatDoesNotFit) {
  BackendFixture backend(KernelBackend::kRef);
  GateCase c(2, 2, 4);
  c.z.fill([](int64_t, int64_t, int64_t) { return 0.f; });
  c.a_log.assign(2, 0.f);
  c.dt_bias.assign(8, 0.f);
  for (const float bound : {-5.5f, 0.f, 1.f, std::numeric_limits<float>::quiet_NaN()}) {
    c.lower_bound = bound;
    EXPECT_THAT(kda_gate(backend.ctx(), c.args()).message(),
                HasSubstr("kda_gate: lower_bound: expected a value in [-5, 0), found "));
  }
  c.lower_bound = std::nullopt;
  c.a_log.assign(128, 0.f);
  EXPECT_THAT(kda_gate(backend.ctx(), c.args()).message(),
              HasSubstr("kda_gate: a_log: expected shape [2], found shape [128]"));
}

}  // namespace
}  // namespace tandem::test
