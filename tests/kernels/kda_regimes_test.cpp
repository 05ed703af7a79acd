// The chunk solve against an fp64 recurrence where chunk solvers break: every regime in which a decay over- or
// underflows, or the triangular system is far from the identity. Powers of a 16 × 16 triangle in low precision lose 14
// % of the output and 52 % of the state on the repeated key (model.md §8, trap 22b).
#include <cstdio>

#include "kda_case.h"

namespace tandem::test {
namespace {

struct Regime {
  const char* name;
  KdaCase inputs;
};

KdaCase with_gate(KdaCase c, const std::function<float(int64_t, int64_t, int64_t)>& g) {
  c.g.fill(g);
  return c;
}

KdaCase nearly_parallel_keys(KdaCase c, float noise, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.f, 1.f);
  std::vector<float> direction(static_cast<size_t>(c.K));
  for (float& x : direction) x = normal(rng);
  c.k.fill([&](int64_t, int64_t, int64_t i) { return direction[static_cast<size_t>(i)] + noise * normal(rng); });
  c.normalise();
  return c;
}

std::vector<Regime> regimes(int64_t T, int64_t K, int64_t V) {
  const auto base = [&](uint32_t seed) { return random_kda_case(T, 2, K, V, seed); };
  std::vector<Regime> list;
  list.push_back({"mixed", base(11)});
  list.push_back({"decay at the bound", with_gate(base(12), [](int64_t, int64_t, int64_t) { return -5.f; })});
  list.push_back({"decay near 1", with_gate(base(13), [](int64_t t, int64_t, int64_t i) {
                    return -1e-6f * static_cast<float>(1 + (t + i) % 3);
                  })});
  list.push_back({"nearly parallel keys", with_gate(nearly_parallel_keys(base(14), 1e-3f, 1),
                                                    [](int64_t, int64_t, int64_t) { return -1e-4f; })});
  KdaCase repeated = with_gate(nearly_parallel_keys(base(15), 0.f, 2), [](int64_t, int64_t, int64_t) { return 0.f; });
  repeated.beta.fill([](int64_t, int64_t, int64_t) { return 0.999f; });
  list.push_back({"one repeated key, no decay", repeated});
  // Softplus gate: some channels forget everything at once, their neighbours nothing.
  list.push_back({"unbounded decay", with_gate(base(16), [](int64_t t, int64_t, int64_t i) {
                    return (t + i) % 5 == 0 ? -1e4f : i % 3 == 0 ? -90.f : -1e-3f;
                  })});
  return list;
}

double relative_error(std::span<const float> actual, std::span<const float> expected) {
  double difference = 0, length = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double d = static_cast<double>(actual[i]) - expected[i];
    difference += d * d;
    length += static_cast<double>(expected[i]) * expected[i];
  }
  return std::sqrt(difference / length);
}

TEST(KdaRegimes, EveryFormStaysWithinRoundingOfDoublePrecision) {
  for (const auto& [T, K, V] : {std::tuple<int64_t, int64_t, int64_t>{80, 64, 64}, {131, 128, 128}, {70, 33, 17}}) {
    for (const Regime& regime : regimes(T, K, V)) {
      const KdaTruth truth = recurrence_f64(regime.inputs);
      double worst_out = 0, worst_state = 0;
      for_each_backend([&](BackendFixture& backend) {
        for (const auto& [form, op] :
             {std::pair<const char*, KdaFunction>{"recurrent", kda_recurrent}, {"chunked", kda_chunked}}) {
          SCOPED_TRACE(::testing::Message() << regime.name << ", " << form << ", T " << T << " K " << K << " V " << V);
          const KdaOutcome actual = run_kda(backend.ctx(), op, regime.inputs);
          EXPECT_TRUE(all_close(actual.out, truth.outcome.out, out_tolerance(regime.inputs, truth)));
          EXPECT_TRUE(all_close(actual.state, truth.outcome.state, state_tolerance(regime.inputs, truth)));
          // Rounding of the whole: sqrt(K + T) · 2^-24 is about 1e-6 here.
          const double out_error = relative_error(actual.out, truth.outcome.out);
          const double state_error = relative_error(actual.state, truth.outcome.state);
          EXPECT_LT(out_error, 8 * std::sqrt(static_cast<double>(K + T)) * 0x1p-24);
          EXPECT_LT(state_error, 8 * std::sqrt(static_cast<double>(K + T)) * 0x1p-24);
          worst_out = std::max(worst_out, out_error);
          worst_state = std::max(worst_state, state_error);
        }
      });
      std::printf("%-27s K %3d: worst relative error of any backend: out %.2g, state %.2g\n", regime.name,
                  static_cast<int>(K), worst_out, worst_state);
    }
  }
}

// 4096 tokens at a decay of exactly 1 and one key: nothing drifts over 256 chunks.
TEST(KdaRegimes, ALongRepeatDoesNotDrift) {
  KdaCase c = with_gate(nearly_parallel_keys(random_kda_case(4096, 1, 32, 16, 21), 0.f, 3),
                        [](int64_t, int64_t, int64_t) { return 0.f; });
  const KdaTruth truth = recurrence_f64(c);
  for_each_backend([&](BackendFixture& backend) {
    const KdaOutcome actual = run_kda(backend.ctx(), kda_chunked, c);
    EXPECT_TRUE(all_close(actual.out, truth.outcome.out, out_tolerance(c, truth)));
    EXPECT_TRUE(all_close(actual.state, truth.outcome.state, state_tolerance(c, truth)));
  });
}

}  // namespace
}  // namespace tandem::test
