// tests/kernels/kda_case.h: inputs of the KDA operators with NaN in every gap between rows, and the recurrence of
// kernels/kda/kda.h in double precision to judge them.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "kernels/kda/kda.h"
#include "support/compare.h"

namespace tandem::test {

// [T, H, W] floats whose rows are `kGap` elements apart; the gaps hold NaN.
class GappedRows {
 public:
  static constexpr int64_t kGap = 3;
  GappedRows() = default;
  GappedRows(int64_t rows, int64_t heads, int64_t width)
      : rows_(rows),
        heads_(heads),
        width_(width),
        data_(static_cast<size_t>(rows * (heads * width + kGap)), std::numeric_limits<float>::quiet_NaN()) {}

  TensorView<float, 3> view() {
    auto view = TensorView<float, 3>::contiguous(data_.data(), {rows_, heads_, width_});
    view.stride[0] = heads_ * width_ + kGap;
    return view;
  }
  float& at(int64_t t, int64_t h, int64_t i) { return view()(t, h, i); }
  void fill(const std::function<float(int64_t, int64_t, int64_t)>& value) {
    for (int64_t t = 0; t < rows_; ++t) {
      for (int64_t h = 0; h < heads_; ++h) {
        for (int64_t i = 0; i < width_; ++i) at(t, h, i) = value(t, h, i);
      }
    }
  }
  std::vector<float> packed() {
    std::vector<float> out;
    for (int64_t t = 0; t < rows_; ++t) {
      for (int64_t h = 0; h < heads_; ++h) {
        for (int64_t i = 0; i < width_; ++i) out.push_back(at(t, h, i));
      }
    }
    return out;
  }
  bool gaps_untouched() const {
    const int64_t stride = heads_ * width_ + kGap;
    for (int64_t t = 0; t < rows_; ++t) {
      for (int64_t i = heads_ * width_; i < stride; ++i) {
        if (!std::isnan(data_[static_cast<size_t>(t * stride + i)])) return false;
      }
    }
    return true;
  }

 private:
  int64_t rows_ = 0, heads_ = 0, width_ = 0;
  std::vector<float> data_;
};

// The rows as a matrix, heads one after the other.
inline MatrixView<float> matrix(GappedRows& rows) {
  const auto view = rows.view();
  MatrixView<float> m;
  m.data = view.data;
  m.shape[0] = view.shape[0];
  m.shape[1] = view.shape[1] * view.shape[2];
  m.stride[0] = view.stride[0];
  m.stride[1] = 1;
  return m;
}

struct KdaCase {
  int64_t T = 0, H = 1, K = 1, V = 1;
  GappedRows q, k, v, g, beta, out;
  std::vector<float> state;  // [H, K, V]
  float scale = 1.f;

  KdaCase(int64_t tokens, int64_t heads, int64_t key_dim, int64_t value_dim)
      : T(tokens),
        H(heads),
        K(key_dim),
        V(value_dim),
        q(T, H, K),
        k(T, H, K),
        v(T, H, V),
        g(T, H, K),
        beta(T, 1, H),
        out(T, H, V),
        state(static_cast<size_t>(H * K * V), 0.f),
        scale(1.f / std::sqrt(static_cast<float>(K))) {}

  KdaArgs args(std::span<const KdaSegment> segments) {
    KdaArgs args;
    args.q = q.view();
    args.k = k.view();
    args.v = v.view();
    args.g = g.view();
    args.beta.data = beta.view().data;
    args.beta.shape[0] = T;
    args.beta.shape[1] = H;
    args.beta.stride[0] = beta.view().stride[0];
    args.beta.stride[1] = 1;
    args.scale = scale;
    args.segments = segments;
    args.out = out.view();
    return args;
  }

  // q and k scaled to unit length as the model does: x · rsqrt(Σ x² + 1e-6).
  void normalise() {
    for (GappedRows* rows : {&q, &k}) {
      for (int64_t t = 0; t < T; ++t) {
        for (int64_t h = 0; h < H; ++h) {
          double sum = 1e-6;
          for (int64_t i = 0; i < K; ++i) sum += static_cast<double>(rows->at(t, h, i)) * rows->at(t, h, i);
          for (int64_t i = 0; i < K; ++i) {
            rows->at(t, h, i) = static_cast<float>(rows->at(t, h, i) / std::sqrt(sum));
          }
        }
      }
    }
  }
};

// Mixed random inputs: decays from the bound to none, β over (0, 1), a random incoming state.
inline KdaCase random_kda_case(int64_t T, int64_t H, int64_t K, int64_t V, uint32_t seed) {
  KdaCase c(T, H, K, V);
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.f, 1.f);
  std::uniform_real_distribution<float> unit(0.01f, 0.99f);
  const auto gaussian = [&](int64_t, int64_t, int64_t) { return normal(rng); };
  c.q.fill(gaussian);
  c.k.fill(gaussian);
  c.v.fill(gaussian);
  c.g.fill([&](int64_t, int64_t, int64_t) { return -5.f / (1.f + std::exp(-2.f * normal(rng) + 2.f)); });
  c.beta.fill([&](int64_t, int64_t, int64_t) { return unit(rng); });
  for (float& s : c.state) s = normal(rng);
  c.normalise();
  return c;
}

struct KdaOutcome {
  std::vector<float> out;    // [T, H, V]
  std::vector<float> state;  // [H, K, V]
};

using KdaFunction = Status (*)(const ExecContext&, const KdaArgs&);

// Runs the whole case as one sequence, split into calls of the given row counts (their sum is T).
inline KdaOutcome run_kda(const ExecContext& ctx, KdaFunction op, KdaCase c, std::span<const int64_t> calls) {
  int64_t begin = 0;
  for (const int64_t rows : calls) {
    const KdaSegment segment{begin, rows, c.state.data()};
    const Status status = op(ctx, c.args({&segment, 1}));
    EXPECT_TRUE(status.is_ok()) << status.message();
    begin += rows;
  }
  EXPECT_EQ(begin, c.T);
  EXPECT_TRUE(c.out.gaps_untouched());
  return {c.out.packed(), c.state};
}
inline KdaOutcome run_kda(const ExecContext& ctx, KdaFunction op, const KdaCase& c) {
  const int64_t all[] = {c.T};
  return run_kda(ctx, op, c, all);
}

struct KdaTruth {
  KdaOutcome outcome;     // rounded from double
  double state_norm = 0;  // the largest length that a state column or a value ever has
};

inline KdaTruth recurrence_f64(KdaCase c) {
  KdaTruth truth;
  std::vector<double> S(c.state.begin(), c.state.end());
  truth.outcome.out.resize(static_cast<size_t>(c.T * c.H * c.V));
  for (int64_t t = 0; t < c.T; ++t) {
    for (int64_t h = 0; h < c.H; ++h) {
      for (int64_t j = 0; j < c.V; ++j) {
        const auto cell = [&](int64_t i) -> double& { return S[static_cast<size_t>((h * c.K + i) * c.V + j)]; };
        double read = 0, o = 0, length = 0, before = 0;
        for (int64_t i = 0; i < c.K; ++i) {
          before += cell(i) * cell(i);
          cell(i) *= std::exp(static_cast<double>(c.g.at(t, h, i)));
          read += cell(i) * c.k.at(t, h, i);
        }
        const double delta = c.beta.at(t, 0, h) * (c.v.at(t, h, j) - read);
        for (int64_t i = 0; i < c.K; ++i) {
          cell(i) += c.k.at(t, h, i) * delta;
          o += cell(i) * c.q.at(t, h, i);
          length += cell(i) * cell(i);
        }
        truth.state_norm = std::max(
            {truth.state_norm, std::sqrt(length), std::sqrt(before), std::fabs(static_cast<double>(c.v.at(t, h, j)))});
        truth.outcome.out[static_cast<size_t>((t * c.H + h) * c.V + j)] = static_cast<float>(c.scale * o);
      }
    }
  }
  truth.outcome.state.assign(S.begin(), S.end());
  return truth;
}

// A state element is a sum of up to T updates, each of which read a K-long product; an output is one more such product.
// q and k are unit vectors, so products are bounded by the length of a state column.
inline float state_tolerance(const KdaCase& c, const KdaTruth& truth) {
  return tolerance_f32(c.K + c.T, static_cast<float>(truth.state_norm));
}
inline float out_tolerance(const KdaCase& c, const KdaTruth& truth) {
  return tolerance_f32(c.K + c.T, c.scale * static_cast<float>(truth.state_norm));
}

}  // namespace tandem::test
