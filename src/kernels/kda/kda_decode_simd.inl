// kernels/kda/kda_decode_simd.inl: kda_decode over Vec. A task is one head of one segment: everything but the state and
// the projections stays in its scratch. Each step is the row function of the operator that it replaces.
#include <cmath>

#include "kernels/backend_entries.h"
#include "kernels/kda/kda_gate_rows.h"
#include "kernels/kda/kda_step_simd.inl"
#include "kernels/norm/norm_rows.h"

namespace tandem {
namespace {

struct HeadScratch {
  float *q, *k, *v, *decay, *out;  // [kStepRows, K or V]
  float* taps;                     // [W, max(K, V)]
  float beta[kStepRows];
};

struct DecodeShape {
  int64_t heads, key_dim, value_dim, width;
};

TANDEM_INLINE DecodeShape decode_shape(const KdaDecodeArgs& args) {
  return {args.heads, args.q.shape[1] / args.heads, args.v.shape[1] / args.heads, args.conv_weight.shape[1]};
}

// One stream's columns of a head: channels [channel, channel + count) of the history and the taps, from `column` of x.
struct Stream {
  MatrixView<const float> x;
  int64_t column, channel, count;
};

void load_taps(const MatrixView<const float>& weight, const Stream& stream, float* __restrict taps) {
  const int64_t width = weight.shape[1];
  const float* __restrict w = weight.data + stream.channel * weight.stride[0];
  if (width == 4 && weight.stride[0] == 4) {  // the released shape: the compiler makes it register shuffles
    for (int64_t c = 0; c < stream.count; ++c) {
      taps[c] = w[4 * c];
      taps[stream.count + c] = w[4 * c + 1];
      taps[2 * stream.count + c] = w[4 * c + 2];
      taps[3 * stream.count + c] = w[4 * c + 3];
    }
    return;
  }
  for (int64_t j = 0; j < width; ++j) {
    for (int64_t c = 0; c < stream.count; ++c) taps[j * stream.count + c] = w[c * weight.stride[0] + j];
  }
}

// Row t of x, or, counting down from the segment's first row, of its history.
TANDEM_INLINE const float* raw_row(const KdaDecodeSegment& segment, const Stream& stream, int64_t i, int64_t past) {
  if (i < 0) return segment.history.data + (past + i) * segment.history.stride[0] + stream.channel;
  return stream.x.data + (segment.row_begin + i) * stream.x.stride[0] + stream.column;
}

// out[rows, count] = silu(conv) of the segment's rows [first, first + rows).
void convolve(const KdaDecodeArgs& args, const KdaDecodeSegment& segment, const Stream& stream, int64_t first,
              int64_t rows, float* taps, float* out) {
  const int64_t width = args.conv_weight.shape[1];
  load_taps(args.conv_weight, stream, taps);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = 0; c < stream.count; c += kLanes) {
      const int64_t left = lanes_left(stream.count - c);
      Vec y = simd::zero();
      for (int64_t j = 0; j < width; ++j) {
        const float* u = raw_row(segment, stream, first + i - (width - 1) + j, width - 1) + c;
        y = simd::fma(simd::load_partial(taps + j * stream.count + c, left), simd::load_partial(u, left), y);
      }
      simd::store_partial(out + i * stream.count + c, y * simd::sigmoid(y), left);
    }
  }
}

// The history moves on by the segment's rows.
void push_history(const KdaDecodeSegment& segment, const Stream& stream, int64_t past) {
  for (int64_t j = 0; j < past; ++j) {
    const float* from = raw_row(segment, stream, segment.num_rows - past + j, past);
    float* to = segment.history.data + j * segment.history.stride[0] + stream.channel;
    for (int64_t c = 0; c < stream.count; c += kLanes) {
      const int64_t left = lanes_left(stream.count - c);
      simd::store_partial(to + c, simd::load_partial(from + c, left), left);
    }
  }
}

TANDEM_INLINE float sigmoid_of(float x) {
  float result;
  simd::store_partial(&result, simd::sigmoid(simd::broadcast(x)), 1);
  return result;
}

// The recurrence over the rows in scratch, one block of state columns at a time.
void step_head(const KdaDecodeArgs& args, const DecodeShape& shape, int64_t rows, float* S, const HeadScratch& s) {
  for (int64_t column = 0; column < shape.value_dim; column += kStepWidth) {
    const int64_t cols = shape.value_dim - column;
    for (int64_t i = 0; i < rows; ++i) {
      const StepOperands x{s.q + i * shape.key_dim,
                           s.k + i * shape.key_dim,
                           s.v + i * shape.value_dim + column,
                           s.decay + i * shape.key_dim,
                           s.out + i * shape.value_dim + column,
                           s.beta[i],
                           args.scale,
                           shape.key_dim};
      if (cols >= kStepWidth) {
        step_columns<kStepCols, true>(S + column, shape.value_dim, x, cols);
      } else {
        step_columns<kStepCols, false>(S + column, shape.value_dim, x, cols);
      }
    }
  }
}

void decode_head(const KdaDecodeArgs& args, const DecodeShape& shape, const KdaDecodeSegment& segment, int64_t h,
                 HeadScratch& s) {
  const int64_t K = shape.key_dim, V = shape.value_dim;
  const int64_t keys = shape.heads * K;
  const Stream q{args.q, h * K, h * K, K};
  const Stream k{args.k, h * K, keys + h * K, K};
  const Stream v{args.v, h * V, 2 * keys + h * V, V};
  const bool bounded = args.lower_bound.has_value();
  const Vec bound = simd::broadcast(bounded ? *args.lower_bound : 0.f);
  const Vec a = simd::broadcast(expf(args.a_log.data[h * args.a_log.stride[0]]));
  for (int64_t first = 0; first < segment.num_rows; first += kStepRows) {
    const int64_t rows = least(kStepRows, segment.num_rows - first);
    convolve(args, segment, q, first, rows, s.taps, s.q);
    convolve(args, segment, k, first, rows, s.taps, s.k);
    convolve(args, segment, v, first, rows, s.taps, s.v);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t t = segment.row_begin + first + i;
      simd::l2_norm_row(s.q + i * K, K, args.l2_eps, s.q + i * K);
      simd::l2_norm_row(s.k + i * K, K, args.l2_eps, s.k + i * K);
      s.beta[i] = sigmoid_of(args.beta.data[t * args.beta.stride[0] + h]);
      gate_head(args.z.data + t * args.z.stride[0] + h * K, args.dt_bias.data + h * K, s.decay + i * K, K, a, bound,
                bounded);
      decay_row(s.decay + i * K, s.decay + i * K, K);
    }
    step_head(args, shape, rows, segment.state + h * K * V, s);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t t = segment.row_begin + first + i;
      simd::gated_norm_row(s.out + i * V, args.gate.data + t * args.gate.stride[0] + h * V, args.norm_weight.data, V,
                           args.norm_eps, args.out.data + t * args.out.stride[0] + h * V);
    }
  }
  push_history(segment, q, shape.width - 1);
  push_history(segment, k, shape.width - 1);
  push_history(segment, v, shape.width - 1);
}

void run_kda_decode(const ExecContext& ctx, const KdaDecodeArgs& args) {
  const DecodeShape shape = decode_shape(args);
  const int64_t key_rows = kStepRows * shape.key_dim;
  const int64_t value_rows = kStepRows * shape.value_dim;
  const int64_t taps = shape.width * (shape.key_dim > shape.value_dim ? shape.key_dim : shape.value_dim);
  const int64_t scratch_size = round_up(3 * key_rows + 2 * value_rows + taps, 16);
  simd::Scratch memory(ctx.arena);
  float* scratch = memory.floats(scratch_size * ctx.pool.num_threads());
  const KdaDecodeSegment* segments = args.segments.data();
  const auto num_segments = static_cast<int64_t>(args.segments.size());
  ctx.pool.parallel_for(num_segments * shape.heads, [&](int64_t task, int thread) {
    const KdaDecodeSegment& segment = segments[task / shape.heads];
    if (segment.num_rows == 0) return;
    HeadScratch s{};
    s.q = scratch + thread * scratch_size;
    s.k = s.q + key_rows;
    s.decay = s.k + key_rows;
    s.v = s.decay + key_rows;
    s.out = s.v + value_rows;
    s.taps = s.out + value_rows;
    decode_head(args, shape, segment, task % shape.heads, s);
  });
}

}  // namespace
}  // namespace tandem
