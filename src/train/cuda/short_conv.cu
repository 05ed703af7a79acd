// train/cuda/short_conv.cu: causal depthwise convolution inside documents, SiLU and an optional l2 norm of each head,
// with gradients.
//
//   A thread keeps the last rows of its channels in registers. In the backward pass it walks width − 1 rows further
//   than its tile, because they read rows of the tile; what they add to the taps belongs to the next tile.
#include "train/cuda/device_math.cuh"
#include "train/cuda/launch.cuh"
#include "train/cuda/row_walk.cuh"

namespace tandem::train::cuda {
namespace {

constexpr int kWidth = kMaxConvWidth;  // narrower taps count as zeros in front

// taps[back][c] multiplies the row `back` rows earlier.
__device__ void load_taps(const ShortConvArgs& args, int channel, bool active, float (&taps)[kWidth][kChannels]) {
#pragma unroll
  for (int back = 0; back < kWidth; ++back) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const bool has = active && back < args.width;
      taps[back][c] = has ? args.taps[(channel + c) * args.width + args.width - 1 - back] : 0.f;
    }
  }
}

template <class T>
__device__ void load_row(const ShortConvArgs& args, const T* x, int64_t row, int channel, bool active,
                         float (&out)[kChannels]) {
  if (active && row >= 0 && row < args.rows) {
    load4(x + row * args.channels + channel, out);
  } else {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) out[c] = 0.f;
  }
}

// window[0] becomes free for the next row.
__device__ void shift(float (&window)[kWidth][kChannels]) {
#pragma unroll
  for (int back = kWidth - 1; back > 0; --back) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) window[back][c] = window[back - 1][c];
  }
}

__device__ void convolve(const float (&window)[kWidth][kChannels], const float (&taps)[kWidth][kChannels],
                         int64_t position, float (&sum)[kChannels]) {
#pragma unroll
  for (int c = 0; c < kChannels; ++c) sum[c] = 0.f;
#pragma unroll
  for (int back = 0; back < kWidth; ++back) {
    if (position < back) continue;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) sum[c] += window[back][c] * taps[back][c];
  }
}

template <class T>
__global__ void forward_kernel(ShortConvArgs args, T* y) {
  const int channel = walk_channel();
  const bool active = channel < args.channels;
  const int lanes = args.norm_dim / kChannels;
  const T* x = static_cast<const T*>(args.x);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTileRows;
  const int64_t end = begin + kTileRows < args.rows ? begin + kTileRows : args.rows;
  float taps[kWidth][kChannels], window[kWidth][kChannels], next[kChannels];
  load_taps(args, channel, active, taps);
#pragma unroll
  for (int back = 1; back < kWidth; ++back) load_row(args, x, begin - back, channel, active, window[back - 1]);
  load_row(args, x, begin, channel, active, next);
  for (int64_t row = begin; row < end; ++row) {
    shift(window);
#pragma unroll
    for (int c = 0; c < kChannels; ++c) window[0][c] = next[c];
    load_row(args, x, row + 1, channel, active, next);
    float sum[kChannels], squares = 0.f;
    convolve(window, taps, args.position[row], sum);
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      sum[c] *= sigmoid(sum[c]);
      squares += sum[c] * sum[c];
    }
    if (lanes > 0) {
      const float scale = rsqrtf(lane_sum(squares, lanes) + args.norm_eps);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) sum[c] *= scale;
    }
    if (active) store4(y + row * args.channels + channel, sum);
  }
}

// dy of one row → the gradient before SiLU.
__device__ void through_activation(const ShortConvArgs& args, int lanes, const float (&sum)[kChannels],
                                   float (&gradient)[kChannels]) {
  float share[kChannels], squares = 0.f, product = 0.f;
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    share[c] = sigmoid(sum[c]);
    const float y = sum[c] * share[c];
    squares += y * y;
    product += y * gradient[c];
  }
  if (lanes > 0) {
    const float scale = rsqrtf(lane_sum(squares, lanes) + args.norm_eps);
    const float along = lane_sum(product, lanes) * scale * scale;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) gradient[c] = scale * (gradient[c] - sum[c] * share[c] * along);
  }
#pragma unroll
  for (int c = 0; c < kChannels; ++c) gradient[c] *= share[c] * (1.f + sum[c] * (1.f - share[c]));
}

template <class T>
__global__ void backward_kernel(ShortConvArgs args, ShortConvGradient gradient) {
  const int channel = walk_channel();
  const bool active = channel < args.channels;
  const int lanes = args.norm_dim / kChannels;
  const T* x = static_cast<const T*>(args.x);
  const T* dy = static_cast<const T*>(gradient.y);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTileRows;
  const int64_t end = begin + kTileRows < args.rows ? begin + kTileRows : args.rows;
  float taps[kWidth][kChannels], window[kWidth][kChannels], next[kChannels], next_dy[kChannels];
  float dx[kWidth][kChannels] = {}, dtaps[kWidth][kChannels] = {};
  load_taps(args, channel, active, taps);
#pragma unroll
  for (int back = 1; back < kWidth; ++back) load_row(args, x, begin - back, channel, active, window[back - 1]);
  load_row(args, x, begin, channel, active, next);
  load_row(args, dy, begin, channel, active, next_dy);
  for (int64_t row = begin; row < end + kWidth - 1; ++row) {
    shift(window);
    shift(dx);
    float change[kChannels];
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      window[0][c] = next[c];
      change[c] = next_dy[c];
      dx[0][c] = 0.f;
    }
    load_row(args, x, row + 1, channel, active, next);
    load_row(args, dy, row + 1, channel, active, next_dy);
    if (row < args.rows) {  // the same for the whole block
      const int64_t position = args.position[row];
      float sum[kChannels];
      convolve(window, taps, position, sum);
      through_activation(args, lanes, sum, change);
#pragma unroll
      for (int back = 0; back < kWidth; ++back) {
        if (position < back) continue;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          dx[back][c] += change[c] * taps[back][c];
          if (row < end) dtaps[back][c] += change[c] * window[back][c];
        }
      }
    }
    const int64_t done = row - (kWidth - 1);
    if (active && done >= begin && done < end) {
      store4(static_cast<T*>(gradient.x) + done * args.channels + channel, dx[kWidth - 1]);
    }
  }
  if (!active) return;
  float* partial = gradient.partial_taps + static_cast<int64_t>(blockIdx.x) * args.channels * args.width;
#pragma unroll
  for (int back = 0; back < kWidth; ++back) {
    if (back >= args.width) continue;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) partial[(channel + c) * args.width + args.width - 1 - back] = dtaps[back][c];
  }
}

}  // namespace

int64_t short_conv_tiles(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

int short_conv_forward(const ShortConvArgs& args, void* y, Stream stream) {
  const WalkShape shape = walk_shape(args.rows, args.channels);
  return args.type == Element::kFloat
             ? launch(forward_kernel<float>, shape.grid, shape.threads, 0, stream, args, static_cast<float*>(y))
             : launch(forward_kernel<Bfloat16>, shape.grid, shape.threads, 0, stream, args, static_cast<Bfloat16*>(y));
}

int short_conv_backward(const ShortConvArgs& args, const ShortConvGradient& gradient, Stream stream) {
  const WalkShape shape = walk_shape(args.rows, args.channels);
  return args.type == Element::kFloat
             ? launch(backward_kernel<float>, shape.grid, shape.threads, 0, stream, args, gradient)
             : launch(backward_kernel<Bfloat16>, shape.grid, shape.threads, 0, stream, args, gradient);
}

}  // namespace tandem::train::cuda
