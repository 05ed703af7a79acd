#include "kernels/shape_check.h"

#include "base/cat.h"
#include "tensor/mxfp4.h"

namespace tandem {

Status check_rows(std::string_view name, MatrixShape matrix) {
  if (matrix.rows < 0 || matrix.cols < 1) {
    return Status::invalid(
        cat(name, ": expected [rows >= 0, columns >= 1], found [", matrix.rows, ", ", matrix.cols, "]"));
  }
  if (matrix.cols > 1 && matrix.col_stride != 1) {
    return Status::invalid(cat(name, ": expected a contiguous last axis, found stride ", matrix.col_stride));
  }
  if (matrix.rows > 1 && matrix.row_stride < matrix.cols) {
    return Status::invalid(
        cat(name, ": expected a row stride of at least ", matrix.cols, ", found ", matrix.row_stride));
  }
  if (matrix.rows > 0 && !matrix.has_data) return Status::invalid(cat(name, ": expected data, found a null pointer"));
  return Status::ok();
}

Status check_shape(std::string_view name, MatrixShape matrix, int64_t rows, int64_t cols) {
  if (matrix.rows != rows || matrix.cols != cols) {
    return Status::invalid(
        cat(name, ": expected shape [", rows, ", ", cols, "], found [", matrix.rows, ", ", matrix.cols, "]"));
  }
  return check_rows(name, matrix);
}

Status check_vector(std::string_view name, const TensorView<const float, 1>& vector, int64_t size) {
  if (vector.shape[0] != size) {
    return Status::invalid(cat(name, ": expected ", size, " elements, found ", vector.shape[0]));
  }
  if (size > 1 && vector.stride[0] != 1) {
    return Status::invalid(cat(name, ": expected a contiguous vector, found stride ", vector.stride[0]));
  }
  if (size > 0 && vector.data == nullptr) return Status::invalid(cat(name, ": expected data, found a null pointer"));
  return Status::ok();
}

Status check_weight(std::string_view name, const WeightView& weight) {
  if (weight.rows < 1 || weight.cols < 1) {
    return Status::invalid(
        cat(name, ": expected at least one row and column, found [", weight.rows, ", ", weight.cols, "]"));
  }
  if (weight.data == nullptr) return Status::invalid(cat(name, ": expected data, found a null pointer"));
  if (weight.format != WeightFormat::kMxfp4) return Status::ok();
  if (weight.cols % kMxGroup != 0) {
    return Status::invalid(cat(name, ": expected an MXFP4 width that is a multiple of 32, found ", weight.cols));
  }
  if (weight.scale == nullptr) return Status::invalid(cat(name, ": expected MXFP4 scales, found a null pointer"));
  return Status::ok();
}

}  // namespace tandem
