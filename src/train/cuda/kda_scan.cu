// train/cuda/kda_scan.cu: the recurrence over the chunks of a document, forward and reverse. A block has one document,
// one head and kSlice columns of the state, which columns do not mix; the state stays in shared memory.
#include "train/cuda/device_math.cuh"
#include "train/cuda/kda_kernels.h"
#include "train/cuda/launch.cuh"

namespace tandem::train::cuda {
namespace {

constexpr int kC = kKdaChunk, kPad = 4;
constexpr int kSlice = 32, kSliceStride = kSlice + kPad;
constexpr int kThreads = 256;
constexpr int kColumnThreads = kSlice / 4;              // four columns a thread
constexpr int kRowThreads = kThreads / kColumnThreads;  // 32

// [rows][D] of memory → [rows][D + kPad] of shared memory.
template <int D>
__device__ void load_rows(const float* from, float* to) {
  for (int e = static_cast<int>(threadIdx.x); e < kC * D / 4; e += kThreads) {
    const int i = e / (D / 4), c = e % (D / 4) * 4;
    *reinterpret_cast<float4*>(to + i * (D + kPad) + c) = *reinterpret_cast<const float4*>(from + i * D + c);
  }
}

// The block's columns of a [rows][D] matrix in memory and shared memory.
template <int D>
__device__ void load_slice(const float* from, int rows, int column, float* to) {
  for (int e = static_cast<int>(threadIdx.x); e < rows * kColumnThreads; e += kThreads) {
    const int i = e / kColumnThreads, c = e % kColumnThreads * 4;
    *reinterpret_cast<float4*>(to + i * kSliceStride + c) =
        *reinterpret_cast<const float4*>(from + static_cast<int64_t>(i) * D + column + c);
  }
}

template <int D>
__device__ void store_slice(const float* from, int rows, int column, float* to) {
  for (int e = static_cast<int>(threadIdx.x); e < rows * kColumnThreads; e += kThreads) {
    const int i = e / kColumnThreads, c = e % kColumnThreads * 4;
    *reinterpret_cast<float4*>(to + static_cast<int64_t>(i) * D + column + c) =
        *reinterpret_cast<const float4*>(from + i * kSliceStride + c);
  }
}

// rows ± weight · state; rows [kC][kSlice].
template <int D>
__device__ void add_product(const float* weight, const float* state, float sign, float* rows) {
  constexpr int kRows = kC / kRowThreads;
  const int first = static_cast<int>(threadIdx.x) / kColumnThreads * kRows;
  const int column = static_cast<int>(threadIdx.x) % kColumnThreads * 4;
  float sum[kRows][4] = {};
  for (int c = 0; c < D; c += 4) {
    float w[kRows][4];
#pragma unroll
    for (int r = 0; r < kRows; ++r) load4(weight + (first + r) * (D + kPad) + c, w[r]);
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      float s[4];
      load4(state + (c + x) * kSliceStride + column, s);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[r][j] += w[r][x] * s[j];
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float* at = rows + (first + r) * kSliceStride + column;
    float old[4];
    load4(at, old);
#pragma unroll
    for (int j = 0; j < 4; ++j) old[j] += sign * sum[r][j];
    store4(at, old);
  }
}

// state ← decay ⊙ state + added ± weightᵀ · rows; added null or the block's columns of [D][D] in memory.
template <int D>
__device__ void update_state(const float* weight, const float* rows, const float* decay, const float* added,
                             int column0, float sign, float* state) {
  constexpr int kRows = D / kRowThreads;  // 2 or 4
  const int first = static_cast<int>(threadIdx.x) / kColumnThreads * kRows;
  const int column = static_cast<int>(threadIdx.x) % kColumnThreads * 4;
  float sum[kRows][4] = {};
  for (int i = 0; i < kC; ++i) {
    float w[kRows], u[4];
#pragma unroll
    for (int r = 0; r < kRows; ++r) w[r] = weight[i * (D + kPad) + first + r];
    load4(rows + i * kSliceStride + column, u);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[r][j] += w[r] * u[j];
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float* at = state + (first + r) * kSliceStride + column;
    float old[4], extra[4] = {};
    load4(at, old);
    if (added != nullptr) load4(added + static_cast<int64_t>(first + r) * D + column0 + column, extra);
#pragma unroll
    for (int j = 0; j < 4; ++j) old[j] = decay[first + r] * old[j] + extra[j] + sign * sum[r][j];
    store4(at, old);
  }
}

template <int D, bool kReverse>
__global__ void __launch_bounds__(kThreads) scan_kernel(KdaScanArgs args) {
  float* weight = reinterpret_cast<float*>(shared_memory());
  float* update_weight = weight + kC * (D + kPad);
  float* rows = update_weight + kC * (D + kPad);
  float* state = rows + kC * kSliceStride;
  const int64_t rank = static_cast<int64_t>(blockIdx.x) / args.heads;
  const int head = static_cast<int>(static_cast<int64_t>(blockIdx.x) % args.heads);
  const int column = static_cast<int>(blockIdx.y) * kSlice;
  constexpr float kSign = kReverse ? 1.f : -1.f;
  load_slice<D>(args.first + static_cast<int64_t>(blockIdx.x) * D * D, D, column, state);
  int steps = 0;  // of this document: it takes part while there is a chunk of its rank
  while (steps < args.steps && rank < args.step_begin[steps + 1] - args.step_begin[steps]) ++steps;
  for (int n = 0; n < steps; ++n) {
    const int64_t chunk = args.step_begin[kReverse ? steps - 1 - n : n] + rank;
    const int64_t place = chunk * args.heads + head;
    load_rows<D>(args.weight + place * kC * D, weight);
    load_rows<D>(args.update_weight + place * kC * D, update_weight);
    load_slice<D>(args.rows + place * kC * D, kC, column, rows);
    __syncthreads();  // this chunk and the state are in place
    store_slice<D>(state, D, column, args.states + place * D * D);
    add_product<D>(weight, state, kSign, rows);
    __syncthreads();  // rows are complete and the state has been read
    store_slice<D>(rows, kC, column, args.rows + place * kC * D);
    update_state<D>(update_weight, rows, args.decay + place * D, kReverse ? args.added + place * D * D : nullptr,
                    column, -kSign, state);
    __syncthreads();  // the next chunk overwrites what this one read
  }
  __syncthreads();  // a document without chunks ends where it began
  store_slice<D>(state, D, column, args.last + static_cast<int64_t>(blockIdx.x) * D * D);
}

template <bool kReverse>
int scan(const KdaScanArgs& args, Stream stream) {
  const int dim = args.dim;
  const size_t floats = static_cast<size_t>(2 * kC * (dim + kPad) + (kC + dim) * kSliceStride);
  const dim3 grid(static_cast<unsigned>(args.documents * args.heads), static_cast<unsigned>(dim / kSlice));
  const auto kernel = dim == 64 ? scan_kernel<64, kReverse> : scan_kernel<128, kReverse>;
  return launch(kernel, grid, kThreads, floats * sizeof(float), stream, args);
}

}  // namespace

int kda_scan(const KdaScanArgs& args, Stream stream) { return scan<false>(args, stream); }
int kda_scan_reverse(const KdaScanArgs& args, Stream stream) { return scan<true>(args, stream); }

}  // namespace tandem::train::cuda
