// KDA recurrence and chunk form: public vectors, goldens, and the laws of kernels/kda/kda.h.
#include <gmock/gmock.h>

#include "kda_case.h"
#include "support/golden.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;

constexpr KdaFunction kForms[] = {kda_recurrent, kda_chunked};

// Row counts of calls that cover T rows: random sizes in [1, largest].
std::vector<int64_t> random_split(int64_t T, int64_t largest, int64_t multiple, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<int64_t> calls;
  for (int64_t left = T; left > 0;) {
    const int64_t size = std::min(left, multiple * std::uniform_int_distribution<int64_t>(1, largest)(rng));
    calls.push_back(size);
    left -= size;
  }
  return calls;
}

void expect_same_bits(const KdaOutcome& a, const KdaOutcome& b) {
  EXPECT_TRUE(all_equal_bits(a.out, b.out));
  EXPECT_TRUE(all_equal_bits(a.state, b.state));
}

void expect_close(const KdaOutcome& actual, const KdaCase& c, const KdaTruth& truth) {
  EXPECT_TRUE(all_close(actual.out, truth.outcome.out, out_tolerance(c, truth)));
  EXPECT_TRUE(all_close(actual.state, truth.outcome.state, state_tolerance(c, truth)));
}

// model.md §9: one head, K = 2, V = 3, three tokens, raw q and k, z with dt_bias inside.
TEST(Kda, MatchesTheHandComputedVectors) {
  const float q[] = {1, 2, -1, 0.5f, 0.3f, 0.4f}, k[] = {0.5f, 1, 2, -1, 1, 1};
  const float v[] = {1, -1, 2, 0.5f, 2, -0.5f, -2, 1, 3}, z[] = {-1, -2, -3, 0, -1.5f, -2.5f};
  const float beta_logits[] = {0, 1, -1};
  const std::vector<float> out[] = {{0.353553214f, -0.353553214f, 0.707106428f, -0.289624357f, -1.002716192f,
                                     0.196155615f, -0.337651851f, 0.110141666f, 0.666057266f},
                                    {0.353553214f, -0.353553214f, 0.707106428f, -0.278583206f, -1.013757343f,
                                     0.218237917f, -0.249938624f, 0.109658763f, 0.789145526f}};
  const std::vector<float> state[] = {
      {-0.179159039f, 0.828604516f, 0.469104269f, -0.462521698f, -0.426748200f, 0.825608177f},
      {-0.074329667f, 1.075931237f, 0.467469358f, -0.386086874f, -0.613096904f, 1.044426153f}};
  const std::optional<float> bounds[] = {-5.f, std::nullopt};
  for_each_backend([&](BackendFixture& backend) {
    for (size_t form = 0; form < 2; ++form) {
      KdaCase c(3, 1, 2, 3);
      c.q.fill([&](int64_t t, int64_t, int64_t i) { return q[t * 2 + i]; });
      c.k.fill([&](int64_t t, int64_t, int64_t i) { return k[t * 2 + i]; });
      c.v.fill([&](int64_t t, int64_t, int64_t i) { return v[t * 3 + i]; });
      c.g.fill([&](int64_t t, int64_t, int64_t i) { return z[t * 2 + i]; });
      c.beta.fill([&](int64_t t, int64_t, int64_t) { return 1.f / (1.f + std::exp(-beta_logits[t])); });
      c.normalise();
      float a_log[] = {0.25f};
      float dt_bias[] = {0.f, 0.f};
      KdaGateArgs gate;
      gate.z = c.g.view();
      gate.g = c.g.view();
      gate.a_log = VectorView<float>::contiguous(a_log, {1});
      gate.dt_bias = VectorView<float>::contiguous(dt_bias, {2});
      gate.lower_bound = bounds[form];
      ASSERT_TRUE(kda_gate(backend.ctx(), gate).is_ok());
      for (const KdaFunction op : kForms) {
        const KdaOutcome actual = run_kda(backend.ctx(), op, c);
        // The vectors have nine decimals; K + T = 5 terms of size about 1.
        EXPECT_TRUE(all_close(actual.out, out[form], tolerance_f32(5, 1.f)));
        EXPECT_TRUE(all_close(actual.state, state[form], tolerance_f32(5, 1.f)));
      }
    }
  });
}

struct GoldenCase {
  KdaCase inputs;
  std::vector<float> dt_bias, a_log;
};

GoldenCase load_golden(const Golden& golden, const std::string& name) {
  const GoldenTensor& q = golden[name + ".q"];
  const int64_t T = q.shape[0], H = q.shape[1], K = q.shape[2];
  const int64_t V = golden[name + ".v"].shape[2];
  GoldenCase c{KdaCase(T, H, K, V), golden[name + ".dt_bias"].f32, golden[name + ".A_log"].f32};
  const auto fill = [&](GappedRows& rows, const std::string& tensor, int64_t heads, int64_t width) {
    const std::vector<float>& values = golden[name + tensor].f32;
    rows.fill(
        [&](int64_t t, int64_t h, int64_t i) { return values[static_cast<size_t>((t * heads + h) * width + i)]; });
  };
  fill(c.inputs.q, ".q", H, K);
  fill(c.inputs.k, ".k", H, K);
  fill(c.inputs.v, ".v", H, V);
  fill(c.inputs.g, ".z", H, K);
  fill(c.inputs.beta, ".beta", 1, H);
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t h = 0; h < H; ++h) {
      c.inputs.beta.at(t, 0, h) =
          static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(c.inputs.beta.at(t, 0, h)))));
    }
  }
  if (golden.has(name + ".S0")) c.inputs.state = golden[name + ".S0"].f32;
  c.inputs.normalise();
  return c;
}

TEST(Kda, MatchesTheGoldens) {
  const Golden golden = Golden::load("golden/ops/kda.safetensors");
  for_each_backend([&](BackendFixture& backend) {
    for (const std::string name : {"d32", "d128", "d64_fast", "d64_slow"}) {
      for (const std::string gate_form : {"bounded", "softplus"}) {
        const std::string prefix = name + "." + gate_form;
        if (!golden.has(prefix + ".o")) continue;
        SCOPED_TRACE(prefix);
        GoldenCase c = load_golden(golden, name);
        KdaGateArgs gate;
        gate.g = c.inputs.g.view();
        gate.z = c.inputs.g.view();
        gate.a_log = VectorView<const float>::contiguous(c.a_log.data(), {c.inputs.H});
        gate.dt_bias = VectorView<const float>::contiguous(c.dt_bias.data(), {c.inputs.H * c.inputs.K});
        if (gate_form == "bounded") gate.lower_bound = -5.f;
        ASSERT_TRUE(kda_gate(backend.ctx(), gate).is_ok());
        if (golden.has(prefix + ".g")) {
          const std::vector<float>& g = golden[prefix + ".g"].f32;
          EXPECT_TRUE(all_close(c.inputs.g.packed(), g, tolerance_f32(1, max_abs(g))));
        }
        const KdaTruth truth = recurrence_f64(c.inputs);
        const int64_t T = c.inputs.T;
        const std::vector<std::vector<int64_t>> modes = {
            {T}, std::vector<int64_t>(static_cast<size_t>(T), 1), random_split(T, 37, 1, 5), {T / 2, T - T / 2}};
        for (const KdaFunction op : kForms) {
          for (const std::vector<int64_t>& calls : modes) {
            const KdaOutcome actual = run_kda(backend.ctx(), op, c.inputs, calls);
            // The golden was computed in f32 as well: its own rounding counts once more.
            EXPECT_TRUE(all_close(actual.out, golden[prefix + ".o"].f32, 2 * out_tolerance(c.inputs, truth)));
            EXPECT_TRUE(all_close(actual.state, golden[prefix + ".S"].f32, 2 * state_tolerance(c.inputs, truth)));
          }
          if (!golden.has(prefix + ".S_half")) continue;
          const KdaSegment half{0, T / 2, nullptr};
          KdaCase copy = c.inputs;
          KdaSegment segment = half;
          segment.state = copy.state.data();
          ASSERT_TRUE(op(backend.ctx(), copy.args({&segment, 1})).is_ok());
          EXPECT_TRUE(all_close(copy.state, golden[prefix + ".S_half"].f32, 2 * state_tolerance(c.inputs, truth)));
        }
      }
    }
  });
}

TEST(Kda, EverySizeAroundTheTilesAgreesWithDoublePrecision) {
  for_each_backend([](BackendFixture& backend) {
    for (const int64_t T : {1, 2, 15, 16, 17, 33}) {
      for (const auto& [K, V] :
           {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {7, 33}, {16, 31}, {17, 32}, {64, 63}, {65, 65}}) {
        SCOPED_TRACE(::testing::Message() << "T " << T << " K " << K << " V " << V);
        const KdaCase c = random_kda_case(T, 2, K, V, static_cast<uint32_t>(T * 1000 + K * 10 + V));
        const KdaTruth truth = recurrence_f64(c);
        for (const KdaFunction op : kForms) expect_close(run_kda(backend.ctx(), op, c), c, truth);
      }
    }
  });
}

TEST(Kda, RecurrentIsBitwiseTheSameForAnySplit) {
  for_each_backend([](BackendFixture& backend) {
    for (uint32_t seed = 0; seed < 6; ++seed) {
      const KdaCase c = random_kda_case(50, 3, 24, 40, seed);
      const KdaOutcome whole = run_kda(backend.ctx(), kda_recurrent, c);
      expect_same_bits(run_kda(backend.ctx(), kda_recurrent, c, random_split(50, 20, 1, seed)), whole);
      expect_same_bits(run_kda(backend.ctx(), kda_recurrent, c, std::vector<int64_t>(50, 1)), whole);
    }
  });
}

TEST(Kda, ChunkedIsBitwiseTheSameForSplitsAtChunkBoundaries) {
  for_each_backend([](BackendFixture& backend) {
    for (const int64_t T : {64, 65, 77}) {
      const KdaCase c = random_kda_case(T, 2, 32, 48, static_cast<uint32_t>(T));
      const KdaOutcome whole = run_kda(backend.ctx(), kda_chunked, c);
      for (uint32_t seed = 0; seed < 4; ++seed) {
        expect_same_bits(run_kda(backend.ctx(), kda_chunked, c, random_split(T, 3, kKdaChunk, seed)), whole);
      }
    }
  });
}

// One head on many threads is cut into blocks of columns; 150 rows are more than the chunks prepared at once.
TEST(Kda, ThreadsDoNotChangeABit) {
  for_each_backend([](BackendFixture& backend) {
    for (const int64_t V : {1, 40, 96, 129}) {
      for (const int64_t T : {33, 150}) {
        SCOPED_TRACE(::testing::Message() << "T " << T << " V " << V);
        const KdaCase c = random_kda_case(T, 1, 20, V, static_cast<uint32_t>(V));
        BackendFixture seven(backend.backend(), 7), one(backend.backend(), 1);
        for (const KdaFunction op : kForms) expect_same_bits(run_kda(seven.ctx(), op, c), run_kda(one.ctx(), op, c));
      }
    }
  });
}

TEST(Kda, PrefillEqualsTokenByTokenForRandomSplits) {
  for_each_backend([](BackendFixture& backend) {
    for (uint32_t seed = 0; seed < 6; ++seed) {
      const KdaCase c = random_kda_case(61, 2, 32, 32, 100 + seed);
      const KdaTruth truth = recurrence_f64(c);
      expect_close(run_kda(backend.ctx(), kda_chunked, c, random_split(61, 30, 1, seed)), c, truth);
      // One row a call is the recurrent step in either form.
      const std::vector<int64_t> ones(61, 1);
      expect_same_bits(run_kda(backend.ctx(), kda_chunked, c, ones), run_kda(backend.ctx(), kda_recurrent, c, ones));
    }
  });
}

// Several sequences in one call, in any order and with any number of threads, are what each is alone; sequences with no
// rows (a batch padded to a bucket) keep their state to the bit, and rows of no segment are not written.
TEST(Kda, NeighboursAndPaddedRowsChangeNothing) {
  for_each_backend([](BackendFixture& backend) {
    for (const KdaFunction op : kForms) {
      const KdaCase a = random_kda_case(19, 2, 20, 24, 1);
      const KdaCase b = random_kda_case(1, 2, 20, 24, 2);
      const KdaCase d = random_kda_case(33, 2, 20, 24, 3);
      const KdaOutcome alone[] = {run_kda(backend.ctx(), op, a), run_kda(backend.ctx(), op, b),
                                  run_kda(backend.ctx(), op, d)};
      constexpr int64_t kPadding = 3;
      KdaCase batch(33 + 19 + 1 + kPadding, 2, 20, 24);  // order d, a, b, then padding rows of NaN
      int64_t row = 0;
      for (KdaCase part : {d, a, b}) {
        for (int64_t t = 0; t < part.T; ++t, ++row) {
          for (int64_t h = 0; h < 2; ++h) {
            for (int64_t i = 0; i < 20; ++i) {
              batch.q.at(row, h, i) = part.q.at(t, h, i);
              batch.k.at(row, h, i) = part.k.at(t, h, i);
              batch.g.at(row, h, i) = part.g.at(t, h, i);
            }
            for (int64_t j = 0; j < 24; ++j) batch.v.at(row, h, j) = part.v.at(t, h, j);
            batch.beta.at(row, 0, h) = part.beta.at(t, 0, h);
          }
        }
      }
      std::vector<float> states[] = {d.state, a.state, b.state, random_kda_case(1, 2, 20, 24, 9).state};
      const std::vector<float> idle = states[3];
      const KdaSegment segments[] = {{0, 33, states[0].data()},
                                     {53, 0, states[3].data()},
                                     {33, 19, states[1].data()},
                                     {52, 1, states[2].data()},
                                     {53, 0, nullptr}};
      BackendFixture four_threads(backend.backend(), 4);
      ASSERT_TRUE(op(four_threads.ctx(), batch.args(segments)).is_ok());
      EXPECT_TRUE(all_equal_bits(states[0], alone[2].state));
      EXPECT_TRUE(all_equal_bits(states[1], alone[0].state));
      EXPECT_TRUE(all_equal_bits(states[2], alone[1].state));
      EXPECT_TRUE(all_equal_bits(states[3], idle));
      const std::vector<float> out = batch.out.packed();
      const auto rows = [&](int64_t begin, int64_t count) {
        return std::span<const float>(out).subspan(static_cast<size_t>(begin * 48), static_cast<size_t>(count * 48));
      };
      EXPECT_TRUE(all_equal_bits(rows(0, 33), alone[2].out));
      EXPECT_TRUE(all_equal_bits(rows(33, 19), alone[0].out));
      EXPECT_TRUE(all_equal_bits(rows(52, 1), alone[1].out));
      for (const float padded : rows(53, kPadding)) EXPECT_TRUE(std::isnan(padded));
    }
  });
}

TEST(Kda, AHeadNeverSeesAnother) {
  for_each_backend([](BackendFixture& backend) {
    for (const KdaFunction op : kForms) {
      const KdaCase c = random_kda_case(21, 3, 17, 19, 4);
      KdaCase disturbed = c;
      const float nan = std::numeric_limits<float>::quiet_NaN();
      for (int64_t t = 0; t < c.T; ++t) {
        for (int64_t i = 0; i < c.K; ++i) disturbed.k.at(t, 1, i) = disturbed.g.at(t, 1, i) = nan;
      }
      const KdaOutcome expected = run_kda(backend.ctx(), op, c);
      const KdaOutcome actual = run_kda(backend.ctx(), op, disturbed);
      const size_t head = static_cast<size_t>(c.K * c.V);
      for (const size_t h : {size_t{0}, size_t{2}}) {
        EXPECT_TRUE(all_equal_bits(std::span(actual.state).subspan(h * head, head),
                                   std::span(expected.state).subspan(h * head, head)));
      }
      EXPECT_TRUE(std::isnan(actual.state[head]));
    }
  });
}

TEST(Kda, RowsThatAreNotFiniteStayOutOfEarlierRows) {
  for_each_backend([](BackendFixture& backend) {
    for (const KdaFunction op : kForms) {
      for (const int64_t first : {1, 3, 13, 16, 21}) {
        const KdaCase c = random_kda_case(38, 2, 20, 19, 8);
        KdaCase changed = c;
        const float nan = std::numeric_limits<float>::quiet_NaN();
        for (int64_t h = 0; h < 2; ++h) {
          for (GappedRows* rows : {&changed.q, &changed.k, &changed.g}) rows->at(first, h, 7) = nan;
          changed.v.at(first, h, 5) = nan;
        }
        const KdaOutcome before = run_kda(backend.ctx(), op, c), after = run_kda(backend.ctx(), op, changed);
        const auto count = static_cast<size_t>(first * 2 * 19);
        EXPECT_TRUE(all_equal_bits(std::span(after.out).first(count), std::span(before.out).first(count)))
            << "from row " << first;
        EXPECT_TRUE(std::isnan(after.out[count + 5]));
      }
    }
  });
}

TEST(Kda, OutMayBeV) {
  for_each_backend([](BackendFixture& backend) {
    for (const KdaFunction op : kForms) {
      KdaCase c = random_kda_case(35, 2, 20, 37, 6);
      const KdaOutcome expected = run_kda(backend.ctx(), op, c);
      const KdaSegment segment{0, 35, c.state.data()};
      KdaArgs args = c.args({&segment, 1});
      args.out = c.v.view();
      ASSERT_TRUE(op(backend.ctx(), args).is_ok());
      EXPECT_TRUE(all_equal_bits(c.v.packed(), expected.out));
      EXPECT_TRUE(all_equal_bits(c.state, expected.state));
    }
  });
}

TEST(Kda, RefusesWhatDoesNotFit) {
  BackendFixture backend(KernelBackend::kRef);
  for (const KdaFunction op : kForms) {
    KdaCase c = random_kda_case(4, 2, 3, 5, 7);
    const KdaSegment segment{0, 4, c.state.data()};
    KdaArgs args = c.args({&segment, 1});
    args.g = args.g.rows(0, 3);
    EXPECT_THAT(op(backend.ctx(), args).message(), HasSubstr("g: expected shape [4, 2, 3], found shape [3, 2, 3]"));
    args = c.args({&segment, 1});
    args.q.stride[2] = 2;
    EXPECT_THAT(op(backend.ctx(), args).message(), HasSubstr("q: expected a contiguous last axis, found stride 2"));
    const KdaSegment outside{2, 3, c.state.data()};
    EXPECT_THAT(op(backend.ctx(), c.args({&outside, 1})).message(),
                HasSubstr("segment 0: expected rows inside [0, 4), found 3 rows from row 2"));
    const KdaSegment stateless{0, 4, nullptr};
    EXPECT_THAT(op(backend.ctx(), c.args({&stateless, 1})).message(),
                HasSubstr("segment 0 state: expected memory for 4 rows, found a null pointer"));
    args = c.args({&segment, 1});
    args.scale = std::numeric_limits<float>::infinity();
    EXPECT_EQ(op(backend.ctx(), args).code(), StatusCode::kInvalidArgument);
    KdaCase empty(0, 2, 3, 5);
    EXPECT_TRUE(op(backend.ctx(), empty.args({})).is_ok());
  }
}

}  // namespace
}  // namespace tandem::test
