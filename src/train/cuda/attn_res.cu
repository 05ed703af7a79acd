// train/cuda/attn_res.cu: the mix of residual sources and its gradient, one warp a row.
//
//   Lane i keeps the scalars of source i, so the number of sources is a run-time number and nothing is indexed in
//   registers. The second walk over a row's sources finds them in the first-level cache.
//   Source: systems.md §9.5 (gradient).
#include "train/cuda/device_math.cuh"
#include "train/cuda/launch.cuh"

namespace tandem::train::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kForwardWarps = 8;
static_assert(kMaxSources <= kWarp);

// Of one source: what its score is made of.
struct Score {
  float dot = 0.f;  // with the score weight
  float inverse_rms = 0.f;
  float with_gradient = 0.f;  // ⟨dh, source⟩; 0 in the forward pass
};

template <class T>
__device__ Score score_source(const AttnResArgs& args, const T* source, const T* gradient, int lane) {
  float squares = 0.f, dot = 0.f, with_gradient = 0.f;
  for (int v = lane; v < args.dim / 8; v += kWarp) {
    float x[8], w[8], d[8];
    load8(source + 8 * v, x);
    load8(args.score_weight + 8 * v, w);
    if (gradient != nullptr) load8(gradient + 8 * v, d);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      squares += x[c] * x[c];
      dot += x[c] * w[c];
      if (gradient != nullptr) with_gradient += x[c] * d[c];
    }
  }
  Score score;
  score.dot = lane_sum(dot, kWarp);
  score.inverse_rms = rsqrtf(lane_sum(squares, kWarp) / static_cast<float>(args.dim) + args.eps);
  if (gradient != nullptr) score.with_gradient = lane_sum(with_gradient, kWarp);
  return score;
}

// The scalars of every source, each in its lane, and the lane's share of the mix (0 behind the last source).
template <class T>
__device__ Score score_row(const AttnResArgs& args, int64_t row, const T* gradient, int lane, float* share) {
  Score mine;
  for (int i = 0; i < args.num_sources; ++i) {
    const Score score = score_source(args, static_cast<const T*>(args.sources[i]) + row * args.dim, gradient, lane);
    if (lane == i) mine = score;
  }
  const bool used = lane < args.num_sources;
  const float value = mine.dot * mine.inverse_rms;
  const float largest = lane_max(used ? value : -INFINITY, kWarp);
  const float power = used ? expf(value - largest) : 0.f;
  *share = power / lane_sum(power, kWarp);
  return mine;
}

template <class T>
__global__ void forward_kernel(AttnResArgs args, T* out) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kForwardWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= args.rows) return;  // the whole warp
  float share = 0.f;
  score_row<T>(args, row, nullptr, lane, &share);
  for (int base = 0; base < args.dim / 8; base += kWarp) {
    const int v = base + lane;
    const bool inside = v < args.dim / 8;
    float sum[8] = {};
    for (int i = 0; i < args.num_sources; ++i) {
      const float a = __shfl_sync(0xffffffffu, share, i);
      if (!inside) continue;
      float x[8];
      load8(static_cast<const T*>(args.sources[i]) + row * args.dim + 8 * v, x);
#pragma unroll
      for (int c = 0; c < 8; ++c) sum[c] += a * x[c];
    }
    if (inside) store8(out + row * args.dim + 8 * v, sum);
  }
}

// With s_i = dot_i r_i: ds_i = a_i (⟨dh, v_i⟩ − ⟨dh, h⟩), dv_i = a_i dh + ds_i (r_i w − dot_i r_i³ v_i / D),
// dw = Σ ds_i r_i v_i, summed over the rows of a warp in its own part of shared memory.
template <class T>
__global__ void backward_kernel(AttnResArgs args, AttnResGradient gradient) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  float* weight_sum = reinterpret_cast<float*>(shared_memory()) + warp * args.dim;
  for (int d = lane; d < args.dim; d += kWarp) weight_sum[d] = 0.f;
  __syncwarp();
  const int64_t step = static_cast<int64_t>(gridDim.x) * warps;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * warps + warp; row < args.rows; row += step) {
    const T* dh_row = static_cast<const T*>(gradient.out) + row * args.dim;
    float share = 0.f;
    const Score mine = score_row<T>(args, row, dh_row, lane, &share);
    const float with_mix = lane_sum(share * mine.with_gradient, kWarp);
    const float score_gradient = share * (mine.with_gradient - with_mix);
    const float of_weight = score_gradient * mine.inverse_rms;
    const float of_source = -of_weight * mine.dot * mine.inverse_rms * mine.inverse_rms / static_cast<float>(args.dim);
    for (int base = 0; base < args.dim / 8; base += kWarp) {
      const int v = base + lane;
      const bool inside = v < args.dim / 8;
      float dh[8] = {}, w[8] = {}, dw[8] = {};
      if (inside) {
        load8(dh_row + 8 * v, dh);
        load8(args.score_weight + 8 * v, w);
      }
      for (int i = 0; i < args.num_sources; ++i) {
        const float a = __shfl_sync(0xffffffffu, share, i);
        const float cw = __shfl_sync(0xffffffffu, of_weight, i);
        const float cx = __shfl_sync(0xffffffffu, of_source, i);
        if (!inside) continue;
        float x[8], dx[8];
        load8(static_cast<const T*>(args.sources[i]) + row * args.dim + 8 * v, x);
#pragma unroll
        for (int c = 0; c < 8; ++c) {
          dx[c] = a * dh[c] + cw * w[c] + cx * x[c];
          dw[c] += cw * x[c];
        }
        store8(static_cast<T*>(gradient.sources[i]) + row * args.dim + 8 * v, dx);
      }
      if (!inside) continue;
#pragma unroll
      for (int c = 0; c < 8; ++c) weight_sum[8 * v + c] += dw[c];
    }
  }
  __syncthreads();  // every warp's part is complete
  for (int d = static_cast<int>(threadIdx.x); d < args.dim; d += static_cast<int>(blockDim.x)) {
    float sum = 0.f;
    for (int i = 0; i < warps; ++i) sum += reinterpret_cast<float*>(shared_memory())[i * args.dim + d];
    gradient.partial_weight[static_cast<int64_t>(blockIdx.x) * args.dim + d] = sum;
  }
}

}  // namespace

int attn_res_forward(const AttnResArgs& args, void* out, Stream stream) {
  const auto blocks = static_cast<unsigned>((args.rows + kForwardWarps - 1) / kForwardWarps);
  const int threads = kForwardWarps * kWarp;
  return args.type == Element::kFloat
             ? launch(forward_kernel<float>, dim3(blocks), threads, 0, stream, args, static_cast<float*>(out))
             : launch(forward_kernel<Bfloat16>, dim3(blocks), threads, 0, stream, args, static_cast<Bfloat16*>(out));
}

int attn_res_backward(const AttnResArgs& args, const AttnResGradient& gradient, Stream stream) {
  const int warps = partial_warps(args.dim);
  const size_t shared = static_cast<size_t>(warps) * static_cast<size_t>(args.dim) * sizeof(float);
  const dim3 grid(static_cast<unsigned>(gradient.blocks));
  return args.type == Element::kFloat
             ? launch(backward_kernel<float>, grid, warps * kWarp, shared, stream, args, gradient)
             : launch(backward_kernel<Bfloat16>, grid, warps * kWarp, shared, stream, args, gradient);
}

}  // namespace tandem::train::cuda
