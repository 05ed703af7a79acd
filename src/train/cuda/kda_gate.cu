// train/cuda/kda_gate.cu: the log decay of KDA and its gradient.
#include "train/cuda/device_math.cuh"
#include "train/cuda/launch.cuh"
#include "train/cuda/row_walk.cuh"

namespace tandem::train::cuda {
namespace {

struct Channels {
  float rate[kChannels], bias[kChannels];
  __device__ Channels(const KdaGateArgs& args, int channel, bool active) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      rate[c] = active ? expf(args.a_log[(channel + c) / args.head_dim]) : 0.f;
      bias[c] = active ? args.dt_bias[channel + c] : 0.f;
    }
  }
};

template <class T>
__global__ void forward_kernel(KdaGateArgs args, float* g) {
  const int channel = walk_channel();
  if (channel >= args.channels) return;
  const Channels own(args, channel, true);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTileRows;
  const int64_t end = begin + kTileRows < args.rows ? begin + kTileRows : args.rows;
  for (int64_t row = begin; row < end; ++row) {
    float z[kChannels];
    load4(static_cast<const T*>(args.z) + row * args.channels + channel, z);
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const float input = z[c] + own.bias[c];
      z[c] = args.bounded ? args.bound * sigmoid(own.rate[c] * input) : -own.rate[c] * softplus(input);
    }
    store4(g + row * args.channels + channel, z);
  }
}

template <class T>
__global__ void backward_kernel(KdaGateArgs args, KdaGateGradient gradient) {
  const int channel = walk_channel();
  if (channel >= args.channels) return;
  const Channels own(args, channel, true);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTileRows;
  const int64_t end = begin + kTileRows < args.rows ? begin + kTileRows : args.rows;
  float da[kChannels] = {}, dbias[kChannels] = {};
  for (int64_t row = begin; row < end; ++row) {
    float z[kChannels], dg[kChannels];
    load4(static_cast<const T*>(args.z) + row * args.channels + channel, z);
    load4(gradient.g + row * args.channels + channel, dg);
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const float input = z[c] + own.bias[c];
      if (args.bounded) {
        const float share = sigmoid(own.rate[c] * input);
        const float before = dg[c] * args.bound * share * (1.f - share) * own.rate[c];
        da[c] += before * input;
        z[c] = before;
      } else {
        da[c] -= dg[c] * own.rate[c] * softplus(input);
        z[c] = -dg[c] * own.rate[c] * sigmoid(input);
      }
      dbias[c] += z[c];
    }
    store4(static_cast<T*>(gradient.z) + row * args.channels + channel, z);
  }
  store4(gradient.partial_a + static_cast<int64_t>(blockIdx.x) * args.channels + channel, da);
  store4(gradient.partial_bias + static_cast<int64_t>(blockIdx.x) * args.channels + channel, dbias);
}

}  // namespace

int kda_gate_forward(const KdaGateArgs& args, float* g, Stream stream) {
  const WalkShape shape = walk_shape(args.rows, args.channels);
  const auto kernel = args.type == Element::kFloat ? forward_kernel<float> : forward_kernel<Bfloat16>;
  return launch(kernel, shape.grid, shape.threads, 0, stream, args, g);
}

int kda_gate_backward(const KdaGateArgs& args, const KdaGateGradient& gradient, Stream stream) {
  const WalkShape shape = walk_shape(args.rows, args.channels);
  const auto kernel = args.type == Element::kFloat ? backward_kernel<float> : backward_kernel<Bfloat16>;
  return launch(kernel, shape.grid, shape.threads, 0, stream, args, gradient);
}

}  // namespace tandem::train::cuda
