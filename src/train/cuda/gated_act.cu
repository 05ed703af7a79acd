// train/cuda/gated_act.cu: SiTU and SwiGLU with gradients, and the copy of rows by index.
#include "train/cuda/device_math.cuh"
#include "train/cuda/launch.cuh"

namespace tandem::train::cuda {
namespace {

constexpr int kThreads = 256;

// One side of SiTU: cap · tanh(x / cap) and its derivative; x itself where cap is 0.
__device__ float capped(float x, float cap, float* slope) {
  if (cap == 0.f) {
    *slope = 1.f;
    return x;
  }
  const float t = tanhf(x / cap);
  *slope = 1.f - t * t;
  return cap * t;
}

template <class T>
__global__ void forward_kernel(GatedActArgs args, T* out) {
  const int64_t i = 8 * (static_cast<int64_t>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x));
  if (i >= args.elements) return;
  float a[8], u[8], slope;
  load8(static_cast<const T*>(args.gate) + i, a);
  load8(static_cast<const T*>(args.up) + i, u);
#pragma unroll
  for (int c = 0; c < 8; ++c)
    a[c] = capped(a[c], args.beta, &slope) * sigmoid(a[c]) * capped(u[c], args.linear_beta, &slope);
  store8(out + i, a);
}

template <class T>
__global__ void backward_kernel(GatedActArgs args, const T* grad_out, T* grad_gate, T* grad_up) {
  const int64_t i = 8 * (static_cast<int64_t>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x));
  if (i >= args.elements) return;
  float a[8], u[8], d[8];
  load8(static_cast<const T*>(args.gate) + i, a);
  load8(static_cast<const T*>(args.up) + i, u);
  load8(grad_out + i, d);
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    float gate_slope, up_slope;
    const float share = sigmoid(a[c]);
    const float gate = capped(a[c], args.beta, &gate_slope), up = capped(u[c], args.linear_beta, &up_slope);
    a[c] = d[c] * up * share * (gate_slope + gate * (1.f - share));
    u[c] = d[c] * gate * share * up_slope;
  }
  store8(grad_gate + i, a);
  store8(grad_up + i, u);
}

__global__ void gather_kernel(const uint4* x, int64_t x_rows, const int64_t* rows, int64_t out_rows, int vectors,
                              uint4* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= out_rows * vectors) return;
  const int64_t row = rows[i / vectors];
  out[i] = row < x_rows ? x[row * vectors + i % vectors] : make_uint4(0, 0, 0, 0);
}

dim3 grid_for(int64_t threads) { return dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)); }

template <class T>
int backward(const GatedActArgs& args, const void* grad_out, void* grad_gate, void* grad_up, Stream stream) {
  return launch(backward_kernel<T>, grid_for(args.elements / 8), kThreads, 0, stream, args,
                static_cast<const T*>(grad_out), static_cast<T*>(grad_gate), static_cast<T*>(grad_up));
}

}  // namespace

int gated_act_forward(const GatedActArgs& args, void* out, Stream stream) {
  const dim3 grid = grid_for(args.elements / 8);
  return args.type == Element::kFloat
             ? launch(forward_kernel<float>, grid, kThreads, 0, stream, args, static_cast<float*>(out))
             : launch(forward_kernel<Bfloat16>, grid, kThreads, 0, stream, args, static_cast<Bfloat16*>(out));
}

int gated_act_backward(const GatedActArgs& args, const void* grad_out, void* grad_gate, void* grad_up, Stream stream) {
  return args.type == Element::kFloat ? backward<float>(args, grad_out, grad_gate, grad_up, stream)
                                      : backward<Bfloat16>(args, grad_out, grad_gate, grad_up, stream);
}

int gather_rows(const void* x, int64_t x_rows, const int64_t* rows, int64_t out_rows, int64_t row_bytes, void* out,
                Stream stream) {
  const auto vectors = static_cast<int>(row_bytes / 16);
  return launch(gather_kernel, grid_for(out_rows * vectors), kThreads, 0, stream, static_cast<const uint4*>(x), x_rows,
                rows, out_rows, vectors, static_cast<uint4*>(out));
}

}  // namespace tandem::train::cuda
