// kernels/kda/short_conv_simd.inl: short_conv over Vec. Lanes are channels; a task owns a block of channels of every
// segment, so that out may be x: the last W−1 raw inputs are kept in a ring of rows that stays in the L1 cache.
#include "kernels/backend_entries.h"
#include "kernels/simd/scratch.h"
#include "kernels/simd/vec_math.h"

namespace tandem {
namespace {

using simd::Vec;

constexpr int64_t kMaxBlock = 1024;  // channels a task: one page of each row
constexpr int64_t kLaneStep = Vec::kLanes;

struct ConvBlock {
  int64_t channel = 0;
  int64_t count = 0;
  int64_t width = 0;            // W
  const float* taps = nullptr;  // [W][kMaxBlock]
  float* ring = nullptr;        // [W−1][kMaxBlock]
};

TANDEM_INLINE Vec load_lanes(const float* p, int64_t left) {
  return left >= kLaneStep ? simd::load(p) : simd::load_partial(p, left);
}
TANDEM_INLINE void store_lanes(float* p, Vec x, int64_t left) {
  if (left >= kLaneStep) {
    simd::store(p, x);
  } else {
    simd::store_partial(p, x, left);
  }
}

// One row. `oldest` is the ring slot of u_{t−(W−1)}, which x_t replaces. kWidth = 0: the width is block.width.
template <int kWidth>
TANDEM_INLINE void conv_row(const ConvBlock& block, int64_t oldest, const float* x, float* out) {
  const int64_t width = kWidth > 0 ? kWidth : block.width;
  for (int64_t c = 0; c < block.count; c += kLaneStep) {
    const int64_t left = block.count - c;
    Vec y = simd::zero();
    int64_t slot = oldest;
    for (int64_t j = 0; j + 1 < width; ++j) {
      y = simd::fma(simd::load(block.taps + j * kMaxBlock + c), simd::load(block.ring + slot * kMaxBlock + c), y);
      slot = slot + 2 < width ? slot + 1 : 0;
    }
    const Vec u = load_lanes(x + c, left);
    y = simd::fma(simd::load(block.taps + (width - 1) * kMaxBlock + c), u, y);
    if (width > 1) simd::store(block.ring + oldest * kMaxBlock + c, u);
    store_lanes(out + c, y * simd::sigmoid(y), left);
  }
}

// taps[j][c] = w[c][j]; lanes past the block's channels are zeros.
void transpose_taps(const MatrixView<const float>& weight, const ConvBlock& block, float* __restrict taps) {
  const float* __restrict w = weight.data + block.channel * weight.stride[0];
  if (block.width == 4 && weight.stride[0] == 4) {  // the released shape: the compiler makes it register shuffles
    for (int64_t c = 0; c < block.count; ++c) {
      taps[c] = w[4 * c];
      taps[kMaxBlock + c] = w[4 * c + 1];
      taps[2 * kMaxBlock + c] = w[4 * c + 2];
      taps[3 * kMaxBlock + c] = w[4 * c + 3];
    }
  } else {
    for (int64_t j = 0; j < block.width; ++j) {
      for (int64_t c = 0; c < block.count; ++c) taps[j * kMaxBlock + c] = w[c * weight.stride[0] + j];
    }
  }
  for (int64_t j = 0; j < block.width; ++j) {
    for (int64_t c = block.count; c % kLaneStep != 0; ++c) taps[j * kMaxBlock + c] = 0.f;
  }
}

void conv_segment(const ShortConvArgs& args, const ShortConvSegment& segment, const ConvBlock& block) {
  const int64_t past = block.width - 1;
  for (int64_t j = 0; j < past; ++j) {
    const float* history = segment.history.data + j * segment.history.stride[0] + block.channel;
    for (int64_t c = 0; c < block.count; c += kLaneStep) {
      simd::store(block.ring + j * kMaxBlock + c, load_lanes(history + c, block.count - c));
    }
  }
  int64_t oldest = 0;
  for (int64_t i = 0; i < segment.num_rows; ++i) {
    const int64_t t = segment.row_begin + i;
    const float* x = args.x.data + t * args.x.stride[0] + block.channel;
    float* out = args.out.data + t * args.out.stride[0] + block.channel;
    if (block.width == 4) {
      conv_row<4>(block, oldest, x, out);
    } else {
      conv_row<0>(block, oldest, x, out);
    }
    oldest = oldest + 1 < past ? oldest + 1 : 0;
  }
  for (int64_t j = 0; j < past; ++j) {
    const int64_t slot = (oldest + j) % past;
    float* history = segment.history.data + j * segment.history.stride[0] + block.channel;
    for (int64_t c = 0; c < block.count; c += kLaneStep) {
      store_lanes(history + c, simd::load(block.ring + slot * kMaxBlock + c), block.count - c);
    }
  }
}

void run_short_conv(const ExecContext& ctx, const ShortConvArgs& args) {
  const int64_t channels = args.x.shape[1];
  const int64_t width = args.weight.shape[1];
  // Two blocks a thread at least, in whole registers.
  const int64_t share = (channels / (2 * ctx.pool.num_threads()) + kLaneStep) / kLaneStep * kLaneStep;
  const int64_t block_size = share < kMaxBlock ? share : kMaxBlock;
  const int64_t num_blocks = (channels + block_size - 1) / block_size;
  const int64_t scratch_size = (2 * width - 1) * kMaxBlock;
  simd::Scratch memory(ctx.arena);
  float* scratch = memory.floats(scratch_size * ctx.pool.num_threads());
  const ShortConvSegment* segments = args.segments.data();
  const auto num_segments = static_cast<int64_t>(args.segments.size());
  ctx.pool.parallel_for(num_blocks, [&](int64_t task, int thread) {
    ConvBlock block;
    block.channel = task * block_size;
    block.count = channels - block.channel < block_size ? channels - block.channel : block_size;
    block.width = width;
    float* taps = scratch + thread * scratch_size;
    block.taps = taps;
    block.ring = taps + width * kMaxBlock;
    transpose_taps(args.weight, block, taps);
    for (int64_t s = 0; s < num_segments; ++s) {
      if (segments[s].num_rows > 0) conv_segment(args, segments[s], block);
    }
  });
}

}  // namespace
}  // namespace tandem
