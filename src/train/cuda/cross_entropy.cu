// train/cuda/cross_entropy.cu: the loss of each row of logits and its gradient, one block a row.
#include "train/cuda/device_math.cuh"
#include "train/cuda/launch.cuh"

namespace tandem::train::cuda {
namespace {

constexpr int kThreads = 256, kWarp = 32, kWarps = kThreads / kWarp;

// Calls f(first column, values, how many) for this thread's columns of the row: vectors where rows are aligned.
template <class T, class F>
__device__ void for_columns(const T* row, int64_t vocab, const F& f) {
  if (vocab % 8 == 0) {
    for (int64_t i = 8 * static_cast<int64_t>(threadIdx.x); i < vocab; i += 8 * kThreads) {
      float x[8];
      load8(row + i, x);
      f(i, x, 8);
    }
  } else {
    for (int64_t i = threadIdx.x; i < vocab; i += kThreads) {
      float x[8] = {load1(row + i)};
      f(i, x, 1);
    }
  }
}

// A sum of exponentials as sum · exp(largest).
struct ScaledSum {
  float largest, sum;
};

__device__ ScaledSum merge(ScaledSum a, ScaledSum b) {
  const float largest = fmaxf(a.largest, b.largest);
  if (largest == -INFINITY) return {largest, 0.f};
  return {largest, a.sum * expf(a.largest - largest) + b.sum * expf(b.largest - largest)};
}

template <class T>
__global__ void forward_kernel(CrossEntropyArgs args, float* loss, float* log_sum) {
  auto* parts = reinterpret_cast<ScaledSum*>(shared_memory());
  const int64_t row = blockIdx.x;
  const T* logits = static_cast<const T*>(args.logits) + row * args.vocab;
  ScaledSum mine = {-INFINITY, 0.f};
  for_columns(logits, args.vocab, [&](int64_t, const float(&x)[8], int count) {
    float largest = mine.largest;
    for (int c = 0; c < count; ++c) largest = fmaxf(largest, x[c]);
    if (largest == -INFINITY) return;
    float sum = mine.sum * expf(mine.largest - largest);
    for (int c = 0; c < count; ++c) sum += expf(x[c] - largest);
    mine = {largest, sum};
  });
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const ScaledSum other = {__shfl_xor_sync(0xffffffffu, mine.largest, offset),
                             __shfl_xor_sync(0xffffffffu, mine.sum, offset)};
    mine = merge(mine, other);
  }
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = mine;
  __syncthreads();  // every warp's part is there
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kWarps; ++i) mine = merge(mine, parts[i]);
  const float total = mine.largest + logf(mine.sum);
  log_sum[row] = total;
  loss[row] = total - load1(logits + args.target[row]);
}

// Rows are independent of each other, whatever a row without weight holds.
template <class T>
__global__ void backward_kernel(CrossEntropyArgs args, const float* log_sum, const float* row_weight, T* gradient) {
  const int64_t row = blockIdx.x;
  const T* logits = static_cast<const T*>(args.logits) + row * args.vocab;
  T* out = gradient + row * args.vocab;
  const float weight = row_weight[row], total = log_sum[row];
  const int64_t target = args.target[row];
  for_columns(logits, args.vocab, [&](int64_t first, float(&x)[8], int count) {
    for (int c = 0; c < count; ++c) {
      const float share = expf(x[c] - total) - (first + c == target ? 1.f : 0.f);
      x[c] = weight == 0.f ? 0.f : weight * share;
    }
    if (count == 8) {
      store8(out + first, x);
    } else {
      store1(out + first, x[0]);
    }
  });
}

}  // namespace

int cross_entropy_forward(const CrossEntropyArgs& args, float* loss, float* log_sum, Stream stream) {
  const auto kernel = args.type == Element::kFloat ? forward_kernel<float> : forward_kernel<Bfloat16>;
  return launch(kernel, dim3(static_cast<unsigned>(args.rows)), kThreads, kWarps * sizeof(ScaledSum), stream, args,
                loss, log_sum);
}

int cross_entropy_backward(const CrossEntropyArgs& args, const float* log_sum, const float* row_weight,
                           void* grad_logits, Stream stream) {
  const dim3 grid(static_cast<unsigned>(args.rows));
  return args.type == Element::kFloat ? launch(backward_kernel<float>, grid, kThreads, 0, stream, args, log_sum,
                                               row_weight, static_cast<float*>(grad_logits))
                                      : launch(backward_kernel<Bfloat16>, grid, kThreads, 0, stream, args, log_sum,
                                               row_weight, static_cast<Bfloat16*>(grad_logits));
}

}  // namespace tandem::train::cuda
