// kernels/mla/mla.h: both forms against double precision and against each other, over pages of every kind, and the laws
// of the contract.
#include "kernels/mla/mla.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "kda_case.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;

using MlaFunction = Status (*)(const ExecContext&, const MlaArgs&);
constexpr MlaFunction kForms[] = {mla_expanded, mla_absorbed};

struct MlaDims {
  int64_t heads, rank, nope, rope, v;
};
constexpr MlaDims kSmall{3, 20, 12, 6, 10};

// One sequence: its cached latents and the queries of its last `rows` tokens.
struct MlaCase {
  MlaDims d;
  int64_t length, rows;
  GappedRows q;
  std::vector<float> latents;  // [length, rank + rope], exact in bf16
  std::vector<float> weight;   // [H (nope + v), rank], exact in bf16 and f16
  float scale;

  MlaCase(MlaDims dims, int64_t cached, int64_t queries, uint32_t seed, float spread = 1.f)
      : d(dims),
        length(cached),
        rows(queries),
        q(queries, d.heads, d.nope + d.rope),
        scale(1.f / std::sqrt(static_cast<float>(d.nope + d.rope))) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal(0.f, 1.f);
    // Eight bits of mantissa and a small exponent range fit bf16 and f16.
    const auto coarse = [&](float size) {
      return round_bf16(std::clamp(normal(rng), 0.01f, 4.f) * size) * (rng() % 2 ? 1.f : -1.f);
    };
    q.fill([&](int64_t, int64_t, int64_t) { return spread * normal(rng); });
    for (int64_t i = 0; i < length * width(); ++i) latents.push_back(coarse(1.f));
    const float size = 1.f / std::sqrt(static_cast<float>(d.rank));
    for (int64_t i = 0; i < d.heads * (d.nope + d.v) * d.rank; ++i) weight.push_back(coarse(size));
  }
  int64_t width() const { return d.rank + d.rope; }
  float w(int64_t h, int64_t row, int64_t c) const {
    return weight[static_cast<size_t>((h * (d.nope + d.v) + row) * d.rank + c)];
  }
};

// The first `length` latents of a case in pages of their own; rows that are not written hold NaN, and the table has one
// more page than needed, without memory.
class Pages {
 public:
  Pages(const MlaCase& c, int64_t length, int64_t page_tokens, DType dtype) {
    const int64_t count = (length + page_tokens - 1) / page_tokens;
    const auto row_bytes = static_cast<size_t>(c.width() * dtype_size(dtype));
    for (int64_t p = 0; p < count; ++p)
      memory_.emplace_back(static_cast<size_t>(page_tokens) * row_bytes, std::byte{0xff});
    for (int64_t s = 0; s < length; ++s) {
      std::byte* row =
          memory_[static_cast<size_t>(s / page_tokens)].data() + static_cast<size_t>(s % page_tokens) * row_bytes;
      for (int64_t i = 0; i < c.width(); ++i) {
        const float value = c.latents[static_cast<size_t>(s * c.width() + i)];
        if (dtype == DType::kF32) {
          reinterpret_cast<float*>(row)[i] = value;
        } else {
          reinterpret_cast<bf16*>(row)[i] = to_bf16(value);
        }
      }
    }
    for (const auto& page : memory_) table_.push_back(page.data());
    table_.push_back(nullptr);
    view_ = {table_, page_tokens, dtype, length};
  }
  Pages(const Pages&) = delete;
  const LatentPages& view() const { return view_; }

 private:
  std::vector<std::vector<std::byte>> memory_;
  std::vector<const std::byte*> table_;
  LatentPages view_;
};

struct StoredWeight {
  std::vector<uint16_t> halves;
  WeightView view;
  StoredWeight(const MlaCase& c, WeightFormat format) {
    view.rows = c.d.heads * (c.d.nope + c.d.v);
    view.cols = c.d.rank;
    view.format = format;
    for (const float w : c.weight) halves.push_back(format == WeightFormat::kF16 ? to_f16(w).bits : to_bf16(w).bits);
    view.data = format == WeightFormat::kF32 ? static_cast<const void*>(c.weight.data()) : halves.data();
  }
};

MlaArgs make_args(MlaCase& c, const WeightView& weight, std::span<const MlaSegment> segments, GappedRows& out) {
  MlaArgs args;
  args.q = c.q.view();
  args.kv_b = weight;
  args.kv_lora_rank = c.d.rank;
  args.qk_nope_head_dim = c.d.nope;
  args.qk_rope_head_dim = c.d.rope;
  args.v_head_dim = c.d.v;
  args.scale = c.scale;
  args.segments = segments;
  args.out = out.view();
  return args;
}

struct Storage {
  int64_t page_tokens = 16;
  DType dtype = DType::kF32;
  WeightFormat format = WeightFormat::kBF16;
};

// The queries in calls of the given row counts; each call sees the cache as it is after its own tokens.
std::vector<float> run_mla(const ExecContext& ctx, MlaFunction op, MlaCase c, std::span<const int64_t> calls,
                           Storage storage = {}) {
  const StoredWeight weight(c, storage.format);
  GappedRows out(c.rows, c.d.heads, c.d.v);
  int64_t begin = 0;
  for (const int64_t count : calls) {
    const Pages pages(c, c.length - c.rows + begin + count, storage.page_tokens, storage.dtype);
    const MlaSegment segment{begin, count, pages.view()};
    const Status status = op(ctx, make_args(c, weight.view, {&segment, 1}, out));
    EXPECT_TRUE(status.is_ok()) << status.message();
    begin += count;
  }
  EXPECT_EQ(begin, c.rows);
  EXPECT_TRUE(out.gaps_untouched());
  return out.packed();
}
std::vector<float> run_mla(const ExecContext& ctx, MlaFunction op, const MlaCase& c, Storage storage = {}) {
  const int64_t all[] = {c.rows};
  return run_mla(ctx, op, c, all, storage);
}

struct MlaTruth {
  std::vector<float> out;
  double largest_score = 0;  // scale · ‖q‖ · ‖k‖
  double largest_value = 0;
};

MlaTruth expanded_f64(MlaCase c) {
  MlaTruth truth;
  truth.out.resize(static_cast<size_t>(c.rows * c.d.heads * c.d.v));
  const int64_t qk = c.d.nope + c.d.rope;
  for (int64_t h = 0; h < c.d.heads; ++h) {
    std::vector<double> keys, values;
    double key_length = 0;
    for (int64_t s = 0; s < c.length; ++s) {
      const float* latent = c.latents.data() + s * c.width();
      const auto project = [&](int64_t row) {
        double sum = 0;
        for (int64_t i = 0; i < c.d.rank; ++i) sum += static_cast<double>(c.w(h, row, i)) * latent[i];
        return sum;
      };
      double length = 0;
      for (int64_t i = 0; i < qk; ++i) {
        keys.push_back(i < c.d.nope ? project(i) : latent[c.d.rank + i - c.d.nope]);
        length += keys.back() * keys.back();
      }
      key_length = std::max(key_length, std::sqrt(length));
      for (int64_t j = 0; j < c.d.v; ++j) {
        values.push_back(project(c.d.nope + j));
        truth.largest_value = std::max(truth.largest_value, std::fabs(values.back()));
      }
    }
    for (int64_t t = 0; t < c.rows; ++t) {
      const int64_t visible = c.length - c.rows + t + 1;
      std::vector<double> p(static_cast<size_t>(visible));
      double query_length = 0;
      for (int64_t i = 0; i < qk; ++i) query_length += static_cast<double>(c.q.at(t, h, i)) * c.q.at(t, h, i);
      truth.largest_score = std::max(truth.largest_score, c.scale * std::sqrt(query_length) * key_length);
      for (int64_t s = 0; s < visible; ++s) {
        double score = 0;
        for (int64_t i = 0; i < qk; ++i) score += c.q.at(t, h, i) * keys[static_cast<size_t>(s * qk + i)];
        p[static_cast<size_t>(s)] = c.scale * score;
      }
      const double largest = *std::max_element(p.begin(), p.end());
      double sum = 0;
      for (double& x : p) sum += x = std::exp(x - largest);
      for (int64_t j = 0; j < c.d.v; ++j) {
        double o = 0;
        for (int64_t s = 0; s < visible; ++s)
          o += p[static_cast<size_t>(s)] * values[static_cast<size_t>(s * c.d.v + j)];
        truth.out[static_cast<size_t>((t * c.d.heads + h) * c.d.v + j)] = static_cast<float>(o / sum);
      }
    }
  }
  return truth;
}

// An output is an average of values. A score is off by the rounding of a (rank + nope + rope)-long product bounded by
// scale‖q‖‖k‖; that moves the average by at most twice as much, relative to the largest value. The values themselves
// and the average over the context add their own rounding.
float mla_tolerance(const MlaCase& c, const MlaTruth& truth) {
  const auto value = static_cast<float>(truth.largest_value);
  return tolerance_f32(c.d.rank + c.d.nope + c.d.rope, value * (1.f + 2.f * static_cast<float>(truth.largest_score))) +
         tolerance_f32(c.length, value);
}

TEST(Mla, BothFormsAgreeWithDoublePrecisionForEveryStorage) {
  const MlaCase c(kSmall, 70, 70, 1);
  const MlaTruth truth = expanded_f64(c);
  for_each_backend([&](BackendFixture& backend) {
    for (const MlaFunction op : kForms) {
      for (const int64_t page_tokens : {1, 3, 16, 64, 1000}) {
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16}) {
            const std::vector<float> actual = run_mla(backend.ctx(), op, c, {page_tokens, dtype, format});
            ASSERT_TRUE(all_close(actual, truth.out, mla_tolerance(c, truth)))
                << "page " << page_tokens << " dtype " << dtype_name(dtype) << " format " << static_cast<int>(format);
          }
        }
      }
      // Where a row lies and how wide it was stored does not move a bit: these values are exact in every format.
      const std::vector<float> one = run_mla(backend.ctx(), op, c, {16, DType::kF32, WeightFormat::kBF16});
      EXPECT_TRUE(all_equal_bits(run_mla(backend.ctx(), op, c, {3, DType::kBF16, WeightFormat::kF16}), one));
    }
  });
}

TEST(Mla, EverySizeAroundTheTiles) {
  for_each_backend([](BackendFixture& backend) {
    for (const MlaDims d : {MlaDims{1, 1, 1, 0, 1}, MlaDims{2, 15, 7, 1, 3}, MlaDims{5, 16, 8, 8, 16},
                            MlaDims{4, 17, 16, 17, 33}, MlaDims{1, 129, 33, 31, 31}}) {
      for (const auto& [length, rows] :
           {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {31, 31}, {33, 2}, {63, 5}, {64, 64}, {65, 65}, {129, 9}}) {
        SCOPED_TRACE(::testing::Message()
                     << "heads " << d.heads << " rank " << d.rank << " length " << length << " rows " << rows);
        const MlaCase c(d, length, rows, static_cast<uint32_t>(d.rank * 1000 + length));
        const MlaTruth truth = expanded_f64(c);
        for (const MlaFunction op : kForms) {
          ASSERT_TRUE(all_close(run_mla(backend.ctx(), op, c, {7}), truth.out, mla_tolerance(c, truth)));
        }
      }
    }
  });
}

// Contexts of several parts of the absorbed form and several groups of tiles of the expanded form.
TEST(Mla, LongContexts) {
  for_each_backend([](BackendFixture& backend) {
    for (const int64_t length : {511, 512, 513, 1100, 2050, 33000}) {
      SCOPED_TRACE(length);
      const MlaCase c(MlaDims{2, 6, 5, 2, 3}, length, 3, static_cast<uint32_t>(length));
      const MlaTruth truth = expanded_f64(c);
      for (const MlaFunction op : kForms) {
        EXPECT_TRUE(all_close(run_mla(backend.ctx(), op, c, {64, DType::kBF16}), truth.out, mla_tolerance(c, truth)));
      }
    }
  });
}

TEST(Mla, RealHeadShapes) {
  const MlaCase c(MlaDims{4, 512, 128, 64, 128}, 150, 20, 3);
  const MlaTruth truth = expanded_f64(c);
  for_each_backend([&](BackendFixture& backend) {
    for (const MlaFunction op : kForms) {
      EXPECT_TRUE(all_close(run_mla(backend.ctx(), op, c), truth.out, mla_tolerance(c, truth)));
    }
  });
}

TEST(Mla, AnySplitIntoCallsIsBitwiseTheSame) {
  for_each_backend([](BackendFixture& backend) {
    for (const MlaFunction op : kForms) {
      for (uint32_t seed = 0; seed < 4; ++seed) {
        const MlaCase c(kSmall, 140 + 200 * static_cast<int64_t>(seed), 140, seed);
        const std::vector<float> whole = run_mla(backend.ctx(), op, c);
        std::mt19937 rng(seed);
        std::vector<int64_t> calls;
        for (int64_t left = c.rows; left > 0; left -= calls.back()) {
          calls.push_back(std::min<int64_t>(left, std::uniform_int_distribution<int64_t>(1, 70)(rng)));
        }
        EXPECT_TRUE(all_equal_bits(run_mla(backend.ctx(), op, c, calls, {3}), whole));
        const std::vector<int64_t> token_by_token(140, 1);
        EXPECT_TRUE(all_equal_bits(run_mla(backend.ctx(), op, c, token_by_token), whole));
      }
    }
  });
}

TEST(Mla, ThreadsDoNotChangeABit) {
  for_each_backend([](BackendFixture& backend) {
    for (const MlaFunction op : kForms) {
      const MlaCase c(MlaDims{1, 20, 12, 6, 10}, 700, 333, 8);
      BackendFixture seven(backend.backend(), 7), one(backend.backend(), 1);
      EXPECT_TRUE(all_equal_bits(run_mla(seven.ctx(), op, c), run_mla(one.ctx(), op, c)));
    }
  });
}

// Several sequences in one call are what each is alone; one without rows is ignored; rows of no segment stay.
TEST(Mla, NeighboursAndPaddedRowsChangeNothing) {
  for_each_backend([](BackendFixture& backend) {
    for (const MlaFunction op : kForms) {
      MlaCase a(kSmall, 90, 21, 1), b(kSmall, 600, 1, 2);
      b.weight = a.weight;
      const std::vector<float> alone_a = run_mla(backend.ctx(), op, a), alone_b = run_mla(backend.ctx(), op, b);
      MlaCase batch(kSmall, 1, 1 + 21 + 2, 3);  // order b, a, then two padding rows
      batch.weight = a.weight;
      const float nan = std::numeric_limits<float>::quiet_NaN();
      batch.q.fill([&](int64_t t, int64_t h, int64_t i) {
        return t == 0 ? b.q.at(0, h, i) : t < 22 ? a.q.at(t - 1, h, i) : nan;
      });
      const Pages pages_a(a, 90, 16, DType::kF32), pages_b(b, 600, 5, DType::kBF16);
      const MlaSegment segments[] = {{1, 21, pages_a.view()}, {22, 0, {}}, {0, 1, pages_b.view()}};
      const StoredWeight weight(batch, WeightFormat::kBF16);
      GappedRows out(24, kSmall.heads, kSmall.v);
      ASSERT_TRUE(op(backend.ctx(), make_args(batch, weight.view, segments, out)).is_ok());
      const std::vector<float> rows = out.packed();
      const size_t row = static_cast<size_t>(kSmall.heads * kSmall.v);
      EXPECT_TRUE(all_equal_bits(std::span(rows).first(row), alone_b));
      EXPECT_TRUE(all_equal_bits(std::span(rows).subspan(row, 21 * row), alone_a));
      for (const float padded : std::span(rows).subspan(22 * row)) EXPECT_TRUE(std::isnan(padded));
    }
  });
}

TEST(Mla, LaterTokensNeverReachEarlierRows) {
  for_each_backend([](BackendFixture& backend) {
    for (const MlaFunction op : kForms) {
      const MlaCase c(kSmall, 75, 75, 5);
      MlaCase changed = c;
      for (size_t i = 40 * static_cast<size_t>(c.width()); i < changed.latents.size(); ++i) changed.latents[i] *= 100.f;
      const size_t row = static_cast<size_t>(c.d.heads * c.d.v);
      const std::vector<float> before = run_mla(backend.ctx(), op, c), after = run_mla(backend.ctx(), op, changed);
      EXPECT_TRUE(all_equal_bits(std::span(after).first(40 * row), std::span(before).first(40 * row)));
      EXPECT_FALSE(all_equal_bits(std::span(after).subspan(40 * row), std::span(before).subspan(40 * row)));
    }
  });
}

// Nor does a weight of 0 hide a row that is not finite.
TEST(Mla, RowsThatAreNotFiniteStayOutOfEarlierRows) {
  for_each_backend([](BackendFixture& backend) {
    for (const MlaFunction op : kForms) {
      for (const size_t first : {1, 40, 66}) {
        const MlaCase c(kSmall, 75, 75, 5);
        MlaCase changed = c;
        for (size_t i = first * static_cast<size_t>(c.width()); i < changed.latents.size(); ++i) {
          changed.latents[i] = std::numeric_limits<float>::quiet_NaN();
        }
        const size_t row = static_cast<size_t>(c.d.heads * c.d.v);
        const std::vector<float> before = run_mla(backend.ctx(), op, c), after = run_mla(backend.ctx(), op, changed);
        EXPECT_TRUE(all_equal_bits(std::span(after).first(first * row), std::span(before).first(first * row)));
        EXPECT_TRUE(std::isnan(after[first * row]));
      }
    }
  });
}

// No position anywhere: the order of the earlier tokens does not matter to the last.
TEST(Mla, PermutingEarlierTokensLeavesTheLastRow) {
  const MlaCase c(kSmall, 80, 1, 6);
  MlaCase permuted = c;
  std::vector<int64_t> order(79);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  for (int64_t s = 0; s < 79; ++s) {
    std::copy_n(c.latents.begin() + order[static_cast<size_t>(s)] * c.width(), c.width(),
                permuted.latents.begin() + s * c.width());
  }
  const MlaTruth truth = expanded_f64(c);
  for_each_backend([&](BackendFixture& backend) {
    for (const MlaFunction op : kForms) {
      EXPECT_TRUE(
          all_close(run_mla(backend.ctx(), op, permuted), run_mla(backend.ctx(), op, c), 2 * mla_tolerance(c, truth)));
    }
  });
}

// Scores in the thousands: the softmax is one-hot and nothing overflows.
TEST(Mla, ExtremeScoresStayFinite) {
  const MlaCase c(kSmall, 100, 100, 7, 1e4f);
  const MlaTruth truth = expanded_f64(c);
  for_each_backend([&](BackendFixture& backend) {
    for (const MlaFunction op : kForms) {
      const std::vector<float> actual = run_mla(backend.ctx(), op, c);
      EXPECT_TRUE(all_close(actual, truth.out, mla_tolerance(c, truth)));
      EXPECT_LE(max_abs(actual), static_cast<float>(truth.largest_value) * 1.0001f);
    }
  });
}

TEST(Mla, RefusesWhatDoesNotFit) {
  BackendFixture backend(KernelBackend::kRef);
  for (const MlaFunction op : kForms) {
    MlaCase c(kSmall, 10, 4, 9);
    const StoredWeight weight(c, WeightFormat::kBF16);
    const Pages pages(c, 10, 4, DType::kF32);
    GappedRows out(4, kSmall.heads, kSmall.v);
    const auto refusal = [&](MlaSegment segment, const std::function<void(MlaArgs&)>& spoil) {
      MlaArgs args = make_args(c, weight.view, {&segment, 1}, out);
      spoil(args);
      const Status status = op(backend.ctx(), args);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      return status.message();
    };
    const MlaSegment good{0, 4, pages.view()};
    const auto nothing = [](MlaArgs&) {};
    MlaSegment segment = good;
    segment.latents.length = 3;
    EXPECT_THAT(refusal(segment, nothing), HasSubstr("segment 0 latents: expected a length of at least 4"));
    segment = good;
    segment.latents.pages = segment.latents.pages.first(2);
    EXPECT_THAT(refusal(segment, nothing), HasSubstr("expected 3 pages for 10 tokens, found 2"));
    segment = good;
    segment.latents.length = 13;
    EXPECT_THAT(refusal(segment, nothing),
                HasSubstr("segment 0 latents: expected memory behind page 3, found a null pointer"));
    segment = good;
    segment.latents.dtype = DType::kF16;
    EXPECT_THAT(refusal(segment, nothing), HasSubstr("expected F32 or BF16, found F16"));
    segment = good;
    segment.latents.page_tokens = 0;
    EXPECT_THAT(refusal(segment, nothing), HasSubstr("pages of at least 1 token"));
    segment = good;
    segment.row_begin = 1;
    EXPECT_THAT(refusal(segment, nothing),
                HasSubstr("segment 0: expected rows inside [0, 4), found 4 rows from row 1"));
    EXPECT_THAT(refusal(good, [](MlaArgs& args) { args.kv_b.rows -= 1; }),
                HasSubstr("kv_b: expected shape [66, 20], found shape [65, 20]"));
    EXPECT_THAT(refusal(good, [](MlaArgs& args) { args.kv_b.format = WeightFormat::kMxfp4; }),
                HasSubstr("kv_b: expected BF16, F16 or F32, found MXFP4"));
    EXPECT_THAT(refusal(good, [](MlaArgs& args) { args.q = args.q.rows(0, 3); }),
                HasSubstr("out: expected shape [3, 3, 10], found shape [4, 3, 10]"));
    EXPECT_TRUE(op(backend.ctx(), make_args(c, weight.view, {}, out)).is_ok());
  }
}

}  // namespace
}  // namespace tandem::test
