#include "kernels/shape_check.h"

#include "tensor/mxfp4.h"

namespace tandem {
namespace {

constexpr std::string_view kNullPointer = "a null pointer";

std::string shape_text(const int64_t* shape, size_t rank) {
  std::string text = "shape [";
  for (size_t axis = 0; axis < rank; ++axis) text += cat(axis == 0 ? "" : ", ", shape[axis]);
  return text + "]";
}

Status check_layout(const Operand& operand, const ViewShape& view) {
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.shape[axis] == 0) return Status::ok();
  }
  const int last = view.rank - 1;
  if (view.shape[last] > 1 && view.stride[last] != 1) {
    return unexpected(operand, "a contiguous last axis", cat("stride ", view.stride[last]));
  }
  if (view.rank == 2 && view.shape[0] > 1 && view.stride[0] < view.shape[1]) {
    return unexpected(operand, cat("a row stride of at least ", view.shape[1]), view.stride[0]);
  }
  if (!view.has_data) return unexpected(operand, "data", kNullPointer);
  return Status::ok();
}

}  // namespace

std::string Operand::text() const {
  std::string text = cat(op, ": ", name);
  if (element) text += cat(" ", *element);
  if (!part.empty()) text += cat(" ", part);
  return text;
}

Status check_view(const Operand& operand, ViewShape view, std::initializer_list<int64_t> expected) {
  const auto rank = static_cast<size_t>(view.rank);
  bool same = expected.size() == rank;
  for (size_t axis = 0; same && axis < rank; ++axis) {
    same = view.shape[axis] == expected.begin()[axis] && view.shape[axis] >= 0;
  }
  if (!same) {
    return unexpected(operand, shape_text(expected.begin(), expected.size()), shape_text(view.shape, rank));
  }
  return check_layout(operand, view);
}

Status check_rows(const Operand& operand, ViewShape matrix) {
  if (matrix.rank != 2 || matrix.shape[0] < 0 || matrix.shape[1] < 1) {
    return unexpected(operand, "shape [rows >= 0, columns >= 1]",
                      shape_text(matrix.shape, static_cast<size_t>(matrix.rank)));
  }
  return check_layout(operand, matrix);
}

Status check_weight(const Operand& operand, const WeightView& weight) {
  if (weight.rows < 1 || weight.cols < 1) {
    return unexpected(operand, "at least one row and column", cat("shape [", weight.rows, ", ", weight.cols, "]"));
  }
  if (weight.data == nullptr) return unexpected(operand, "data", kNullPointer);
  if (weight.format == WeightFormat::kInt8 && weight.scale == nullptr) {
    return unexpected(operand, "int8 scales", kNullPointer);
  }
  if (weight.format != WeightFormat::kMxfp4) return Status::ok();
  if (weight.cols % kMxGroup != 0) {
    return unexpected(operand, "an MXFP4 width that is a multiple of 32", weight.cols);
  }
  if (weight.scale == nullptr) return unexpected(operand, "MXFP4 scales", kNullPointer);
  return Status::ok();
}

Status check_weight(const Operand& operand, const WeightView& weight, int64_t rows, int64_t cols) {
  if (weight.rows != rows || weight.cols != cols) {
    return unexpected(operand, cat("shape [", rows, ", ", cols, "]"),
                      cat("shape [", weight.rows, ", ", weight.cols, "]"));
  }
  return check_weight(operand, weight);
}

Status check_segment(const Operand& operand, int64_t begin, int64_t count, int64_t num_rows) {
  if (begin < 0 || count < 0 || begin > num_rows || count > num_rows - begin) {
    return unexpected(operand, cat("rows inside [0, ", num_rows, ")"), cat(count, " rows from row ", begin));
  }
  return Status::ok();
}

}  // namespace tandem
