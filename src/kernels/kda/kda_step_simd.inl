// kernels/kda/kda_step_simd.inl: the recurrent step of kda.h over Vec for one head, shared by the recurrent and the
// chunked kernel. Included by their `_simd.inl` files.
//
//   Columns of the state are independent, so the walk over tokens is done for one block of columns at a time, which
//   stays in the L1 cache between its two passes: read with the decayed state, then update and read again.
#pragma once

#include "kernels/kda/kda.h"
#include "kernels/simd/scratch.h"
#include "kernels/simd/tile_matmul.inl"
#include "kernels/simd/vec_math.h"

namespace tandem {
namespace {

inline constexpr int kStepCols = 4;                    // registers of columns a block
inline constexpr int kStepWidth = kStepCols * kLanes;  // columns a block
inline constexpr int64_t kStepRows = kKdaChunk;        // tokens whose decays are computed at once

struct KdaShape {
  int64_t heads, key_dim, value_dim;
};

TANDEM_INLINE KdaShape kda_shape(const KdaArgs& args) { return {args.q.shape[1], args.q.shape[2], args.v.shape[2]}; }

template <class T>
TANDEM_INLINE T* head_row(const TensorView<T, 3>& view, int64_t t, int64_t h) {
  return view.data + t * view.stride[0] + h * view.stride[1];
}

TANDEM_INLINE float beta_of(const KdaArgs& args, int64_t t, int64_t h) {
  return args.beta.data[t * args.beta.stride[0] + h * args.beta.stride[1]];
}

// decay[K] = exp(g_t)
TANDEM_INLINE void decay_row(const float* g, float* decay, int64_t key_dim) {
  for (int64_t i = 0; i < key_dim; i += kLanes) {
    const int64_t left = lanes_left(key_dim - i);
    simd::store_partial(decay + i, simd::exp(simd::load_partial(g + i, left)), left);
  }
}

struct StepOperands {
  const float *q, *k, *v, *decay;
  float* out;
  float beta, scale;
  int64_t key_dim;
};

// S points at the first of the block's `cols` columns, rows `stride` apart.
template <int kCols, bool kFull>
TANDEM_INLINE void step_columns(float* S, int64_t stride, const StepOperands& x, int64_t cols) {
  Vec read[kCols];
  for (int c = 0; c < kCols; ++c) read[c] = simd::zero();
  for (int64_t i = 0; i < x.key_dim; ++i) {
    const Vec decay = simd::broadcast(x.decay[i]);
    const Vec k = simd::broadcast(x.k[i]);
    for (int c = 0; c < kCols; ++c) {
      const Vec s = decay * load_cols<kFull>(S + i * stride + c * kLanes, cols - c * kLanes);
      read[c] = simd::fma(s, k, read[c]);
    }
  }
  Vec delta[kCols], o[kCols];
  for (int c = 0; c < kCols; ++c) {
    delta[c] = simd::broadcast(x.beta) * (load_cols<kFull>(x.v + c * kLanes, cols - c * kLanes) - read[c]);
    o[c] = simd::zero();
  }
  for (int64_t i = 0; i < x.key_dim; ++i) {
    const Vec decay = simd::broadcast(x.decay[i]);
    const Vec k = simd::broadcast(x.k[i]);
    const Vec q = simd::broadcast(x.q[i]);
    for (int c = 0; c < kCols; ++c) {
      float* row = S + i * stride + c * kLanes;
      const Vec s = simd::fma(k, delta[c], decay * load_cols<kFull>(row, cols - c * kLanes));
      store_cols<kFull>(row, s, cols - c * kLanes);
      o[c] = simd::fma(s, q, o[c]);
    }
  }
  for (int c = 0; c < kCols; ++c) {
    store_cols<kFull>(x.out + c * kLanes, simd::broadcast(x.scale) * o[c], cols - c * kLanes);
  }
}

// Tokens [t0, t0 + rows) of columns [begin, end) of one head, rows ≤ kStepRows; decay is scratch for rows · K floats.
TANDEM_INLINE void step_rows(const KdaArgs& args, int64_t t0, int64_t rows, int64_t h, float* S, int64_t begin,
                             int64_t end, float* decay) {
  const KdaShape shape = kda_shape(args);
  for (int64_t i = 0; i < rows; ++i) decay_row(head_row(args.g, t0 + i, h), decay + i * shape.key_dim, shape.key_dim);
  for (int64_t column = begin; column < end; column += kStepWidth) {
    const int64_t cols = end - column;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t t = t0 + i;
      const StepOperands x{head_row(args.q, t, h),
                           head_row(args.k, t, h),
                           head_row(args.v, t, h) + column,
                           decay + i * shape.key_dim,
                           head_row(args.out, t, h) + column,
                           beta_of(args, t, h),
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

}  // namespace
}  // namespace tandem
