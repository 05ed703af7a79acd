// kernels/simd/weight_product.h: y[t][o] = Σ_k W[o][k] x[t][k] for a block of rows of one stored matrix and a block of
// tokens: the inner loop of linear and of the routed experts.
//
//   Each (t, o) owns one register of partial sums, fed along k in one fixed order and folded at the end. Neither the
//   number of tokens, nor the tile a pair falls into, nor the split of k into blocks (partial sums are parked in memory
//   as whole registers) changes a bit of it.
//
//   Few tokens: weights are widened in registers and used at once; memory bandwidth is the limit.
//   Many tokens: a block of rows is widened once to f32 scratch (kRowBlock × kColBlock, in L2) and multiplied from
//   there by register tiles; sixteen of its rows and the x of a tile stay in L1.
//
//   Built once for each instruction set (weight_product_<set>.cpp); callers are the same set's operators.
#pragma once

#include <cstdint>

#include "tensor/weight_view.h"

namespace tandem {

inline constexpr int64_t kRowBlock = 64;
inline constexpr int64_t kColBlock = 512;
inline constexpr int64_t kTokenBlock = 96;

// A block of work: rows [row_begin, row_end) of the weight times at most kTokenBlock tokens. At most kRowBlock rows,
// unless product_streams(num_tokens). y[t] points at the value of row_begin.
struct Product {
  const void* data;
  const uint8_t* scale;
  int64_t cols;
  int64_t row_begin;
  int64_t row_end;
  int64_t num_tokens;
  const float* const* x;  // in even/odd order when the weight is MXFP4 (kernels/simd/weight_rows.h)
  float* const* y;
  float* scratch;    // product_scratch_floats()
  const void* next;  // what this thread reads after these rows, in rows of the same width, or null: prefetched
};

#define TANDEM_DECLARE_PRODUCT(set)                                                                      \
  namespace set {                                                                                        \
  void weight_product(WeightFormat format, const Product& product);                                      \
  bool product_streams(int64_t num_tokens); /* few enough tokens to use weights as they are read */      \
  int64_t product_scratch_floats(int64_t cols, int64_t num_tokens); /* a thread needs for such blocks */ \
  }
TANDEM_DECLARE_PRODUCT(portable)
TANDEM_DECLARE_PRODUCT(neon)
TANDEM_DECLARE_PRODUCT(avx2)
TANDEM_DECLARE_PRODUCT(avx512)
#undef TANDEM_DECLARE_PRODUCT

}  // namespace tandem
