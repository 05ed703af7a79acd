// kernels/kda/kda_decode_ref.cpp: kda_decode as its definition, one reference operator after the other.
#include "kernels/backend_entries.h"

namespace tandem::ref {
namespace {

TensorView<float, 3> heads_of(const MatrixView<float>& m, int64_t heads) {
  return TensorView<float, 3>::contiguous(m.data, {m.shape[0], heads, m.shape[1] / heads});
}
MatrixView<float> head_rows(const MatrixView<float>& m, int64_t heads) {
  return MatrixView<float>::contiguous(m.data, {m.shape[0] * heads, m.shape[1] / heads});
}

struct Buffers {
  MatrixView<float> q, k, v, g, beta, gate;
};

void convolve(const ExecContext& ctx, const KdaDecodeArgs& args, const Buffers& b) {
  const int64_t keys = args.q.shape[1];
  const std::span<ShortConvSegment> segments =
      ctx.arena.alloc<ShortConvSegment>(static_cast<int64_t>(args.segments.size()));
  const auto stream = [&](const MatrixView<const float>& x, int64_t first, const MatrixView<float>& out) {
    for (size_t i = 0; i < segments.size(); ++i) {
      segments[i] = {args.segments[i].row_begin, args.segments[i].num_rows, {}};
      if (args.conv_weight.shape[1] > 1 && args.segments[i].num_rows > 0) {
        segments[i].history = args.segments[i].history.columns(first, x.shape[1]);
      }
    }
    ref::short_conv(ctx, {x, args.conv_weight.rows(first, x.shape[1]), segments, out});
  };
  stream(args.q, 0, b.q);
  stream(args.k, keys, b.k);
  stream(args.v, 2 * keys, b.v);
}

// Copies the rows of the segments; the others stay zero, and nothing reads them.
MatrixView<float> copy_rows(const ExecContext& ctx, const KdaDecodeArgs& args, const MatrixView<const float>& from) {
  const auto to = MatrixView<float>::contiguous(ctx.arena.alloc<float>(from.shape[0] * from.shape[1]).data(),
                                                {from.shape[0], from.shape[1]});
  for (int64_t t = 0; t < to.shape[0]; ++t) {
    for (int64_t c = 0; c < to.shape[1]; ++c) to(t, c) = 0.f;
  }
  for (const KdaDecodeSegment& segment : args.segments) {
    for (int64_t t = segment.row_begin; t < segment.row_begin + segment.num_rows; ++t) {
      for (int64_t c = 0; c < to.shape[1]; ++c) to(t, c) = from(t, c);
    }
  }
  return to;
}

}  // namespace

void kda_decode(const ExecContext& ctx, const KdaDecodeArgs& args) {
  const ArenaScope scope(ctx.arena);
  const int64_t H = args.heads;
  const Buffers b{copy_rows(ctx, args, args.q), copy_rows(ctx, args, args.k),    copy_rows(ctx, args, args.v),
                  copy_rows(ctx, args, args.z), copy_rows(ctx, args, args.beta), copy_rows(ctx, args, args.gate)};
  convolve(ctx, args, b);
  ref::l2_norm(ctx, {head_rows(b.q, H), args.l2_eps, head_rows(b.q, H)});
  ref::l2_norm(ctx, {head_rows(b.k, H), args.l2_eps, head_rows(b.k, H)});
  ref::sigmoid_inplace(ctx, b.beta);
  ref::kda_gate(ctx, {heads_of(b.g, H), args.a_log, args.dt_bias, args.lower_bound, heads_of(b.g, H)});
  const std::span<KdaSegment> segments = ctx.arena.alloc<KdaSegment>(static_cast<int64_t>(args.segments.size()));
  for (size_t i = 0; i < segments.size(); ++i) {
    segments[i] = {args.segments[i].row_begin, args.segments[i].num_rows, args.segments[i].state};
  }
  ref::kda_recurrent(ctx, {heads_of(b.q, H), heads_of(b.k, H), heads_of(b.v, H), heads_of(b.g, H), b.beta, args.scale,
                           segments, heads_of(b.v, H)});
  ref::rms_norm_gated(ctx,
                      {head_rows(b.v, H), head_rows(b.gate, H), args.norm_weight, args.norm_eps, head_rows(b.v, H)});
  for (const KdaDecodeSegment& segment : args.segments) {
    for (int64_t t = segment.row_begin; t < segment.row_begin + segment.num_rows; ++t) {
      for (int64_t c = 0; c < args.out.shape[1]; ++c) args.out(t, c) = b.v(t, c);
    }
  }
}

}  // namespace tandem::ref
