// train/cuda/row_norm.cu: RMSNorm, plain and gated, and its gradient; a row is the work of 8, 16 or 32 lanes.
#include "train/cuda/device_math.cuh"
#include "train/cuda/launch.cuh"

namespace tandem::train::cuda {
namespace {

constexpr int kWarp = 32;

// One thread's place: `row` of its group of lanes in the loop's pass that starts at `first`.
struct Place {
  int lane, group_of_warp, groups_per_warp, group, groups;
  __device__ explicit Place(int lanes) {
    const int thread = static_cast<int>(threadIdx.x);
    lane = thread % lanes;
    groups_per_warp = kWarp / lanes;
    group_of_warp = thread % kWarp / lanes;
    group = thread / lanes;
    groups = static_cast<int>(blockDim.x) / lanes;
  }
};

template <class T>
__device__ float inverse_rms(const RmsNormArgs& args, const T* x, bool active, int lane, int lanes) {
  float squares = 0.f;
  for (int v = lane; active && v < args.dim / 8; v += lanes) {
    float value[8];
    load8(x + 8 * v, value);
#pragma unroll
    for (int c = 0; c < 8; ++c) squares += value[c] * value[c];
  }
  return rsqrtf(lane_sum(squares, lanes) / static_cast<float>(args.dim) + args.eps);
}

template <class T, bool kGated>
__global__ void forward_kernel(RmsNormArgs args, T* y, int lanes) {
  const Place place(lanes);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * place.groups + place.group;
  const bool active = row < args.rows;
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  const float scale = inverse_rms(args, x, active, place.lane, lanes);
  for (int v = place.lane; active && v < args.dim / 8; v += lanes) {
    float value[8], weight[8], gate[8];
    load8(x + 8 * v, value);
    load8(args.weight + 8 * v, weight);
    if (kGated) load8(static_cast<const T*>(args.gate) + row * args.dim + 8 * v, gate);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      value[c] = value[c] * scale * weight[c];
      if (kGated) value[c] *= sigmoid(gate[c]);
    }
    store8(y + row * args.dim + 8 * v, value);
  }
}

// With n = x r and t = dy ⊙ σ(gate): dx = r (t w − n mean(t w n)), dw = Σ t n, dgate = dy n w σ (1 − σ).
template <class T, bool kGated>
__global__ void backward_kernel(RmsNormArgs args, RmsNormGradient gradient, int lanes) {
  const Place place(lanes);
  float* weight_sum = reinterpret_cast<float*>(shared_memory()) + place.group * args.dim;
  for (int d = place.lane; d < args.dim; d += lanes) weight_sum[d] = 0.f;
  __syncwarp();
  const int64_t step = static_cast<int64_t>(gridDim.x) * place.groups;
  // The rows of a warp's groups are neighbours, and the loop runs as long as the warp has one.
  const int64_t start = static_cast<int64_t>(blockIdx.x) * place.groups + place.group - place.group_of_warp;
  for (int64_t first = start; first < args.rows; first += step) {
    const int64_t row = first + place.group_of_warp;
    const bool active = row < args.rows;
    const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
    const T* dy = static_cast<const T*>(gradient.y) + row * args.dim;
    const T* gate = static_cast<const T*>(args.gate) + row * args.dim;
    const float scale = inverse_rms(args, x, active, place.lane, lanes);
    float product = 0.f;
    for (int v = place.lane; active && v < args.dim / 8; v += lanes) {
      float value[8], weight[8], up[8], opening[8];
      load8(x + 8 * v, value);
      load8(args.weight + 8 * v, weight);
      load8(dy + 8 * v, up);
      if (kGated) load8(gate + 8 * v, opening);
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const float through = kGated ? up[c] * sigmoid(opening[c]) : up[c];
        product += through * weight[c] * value[c] * scale;
      }
    }
    const float mean = lane_sum(product, lanes) / static_cast<float>(args.dim);
    for (int v = place.lane; active && v < args.dim / 8; v += lanes) {
      float value[8], weight[8], up[8], opening[8], dx[8], dgate[8];
      load8(x + 8 * v, value);
      load8(args.weight + 8 * v, weight);
      load8(dy + 8 * v, up);
      if (kGated) load8(gate + 8 * v, opening);
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const float normal = value[c] * scale;
        float through = up[c];
        if (kGated) {
          const float share = sigmoid(opening[c]);
          dgate[c] = up[c] * normal * weight[c] * share * (1.f - share);
          through *= share;
        }
        dx[c] = scale * (through * weight[c] - normal * mean);
        weight_sum[8 * v + c] += through * normal;
      }
      store8(static_cast<T*>(gradient.x) + row * args.dim + 8 * v, dx);
      if (kGated) store8(static_cast<T*>(gradient.gate) + row * args.dim + 8 * v, dgate);
    }
  }
  __syncthreads();  // every group's part is complete
  for (int d = static_cast<int>(threadIdx.x); d < args.dim; d += static_cast<int>(blockDim.x)) {
    float sum = 0.f;
    for (int i = 0; i < place.groups; ++i) sum += reinterpret_cast<float*>(shared_memory())[i * args.dim + d];
    gradient.partial_weight[static_cast<int64_t>(blockIdx.x) * args.dim + d] = sum;
  }
}

int lanes_for(int dim) {
  if (dim <= 64) return 8;
  return dim <= 128 ? 16 : 32;
}

template <class T>
int forward(const RmsNormArgs& args, void* y, Stream stream) {
  constexpr int kThreads = 256;
  const int lanes = lanes_for(args.dim), groups = kThreads / lanes;
  const dim3 grid(static_cast<unsigned>((args.rows + groups - 1) / groups));
  const auto kernel = args.gate != nullptr ? forward_kernel<T, true> : forward_kernel<T, false>;
  return launch(kernel, grid, kThreads, 0, stream, args, static_cast<T*>(y), lanes);
}

template <class T>
int backward(const RmsNormArgs& args, const RmsNormGradient& gradient, Stream stream) {
  const int lanes = lanes_for(args.dim), warps = partial_warps(args.dim * (kWarp / lanes));
  const size_t shared =
      static_cast<size_t>(warps) * static_cast<size_t>(kWarp / lanes) * static_cast<size_t>(args.dim) * sizeof(float);
  const dim3 grid(static_cast<unsigned>(gradient.blocks));
  const auto kernel = args.gate != nullptr ? backward_kernel<T, true> : backward_kernel<T, false>;
  return launch(kernel, grid, warps * kWarp, shared, stream, args, gradient, lanes);
}

}  // namespace

int partial_blocks(int64_t rows, int dim) {
  constexpr int64_t kMost = 132 * 8, kRowsPerWarp = 4;
  const int64_t wanted = rows / (partial_warps(dim) * kRowsPerWarp);
  return static_cast<int>(wanted < 1 ? 1 : (wanted > kMost ? kMost : wanted));
}

int rms_norm_forward(const RmsNormArgs& args, void* y, Stream stream) {
  return args.type == Element::kFloat ? forward<float>(args, y, stream) : forward<Bfloat16>(args, y, stream);
}

int rms_norm_backward(const RmsNormArgs& args, const RmsNormGradient& gradient, Stream stream) {
  return args.type == Element::kFloat ? backward<float>(args, gradient, stream)
                                      : backward<Bfloat16>(args, gradient, stream);
}

}  // namespace tandem::train::cuda
