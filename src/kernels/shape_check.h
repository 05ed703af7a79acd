// kernels/shape_check.h: what the public functions of the operators check before they dispatch. Each returns
// kInvalidArgument with the operator and argument, the expected shape and the one found.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "tensor/view.h"
#include "tensor/weight_view.h"

namespace tandem {

// Shape and strides of a matrix, without its element type.
struct MatrixShape {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
  bool has_data = false;

  template <class T>
  MatrixShape(const TensorView<T, 2>& view)  // NOLINT: implicit by design, a view is passed as an argument
      : rows(view.shape[0]),
        cols(view.shape[1]),
        row_stride(view.stride[0]),
        col_stride(view.stride[1]),
        has_data(view.data != nullptr) {}
};

// At least one column, last axis contiguous, rows that do not overlap, and memory behind them if there are any.
Status check_rows(std::string_view name, MatrixShape matrix);
// check_rows, and the given extents.
Status check_shape(std::string_view name, MatrixShape matrix, int64_t rows, int64_t cols);
inline Status check_same_shape(std::string_view name, MatrixShape matrix, MatrixShape like) {
  return check_shape(name, matrix, like.rows, like.cols);
}
// A contiguous vector of `size` elements.
Status check_vector(std::string_view name, const TensorView<const float, 1>& vector, int64_t size);
// A stored matrix with memory behind it; MXFP4 also has scales and a width that is a multiple of 32.
Status check_weight(std::string_view name, const WeightView& weight);

}  // namespace tandem
