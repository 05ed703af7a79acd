// kernels/shape_check.h: what the public functions of the operators check before they dispatch. Each check returns
// kInvalidArgument as "op: argument: expected …, found …"; the text is built only when a check fails, so that a call
// that passes allocates nothing.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "base/cat.h"
#include "base/result.h"
#include "tensor/view.h"
#include "tensor/weight_view.h"

namespace tandem {

// Which argument of which operator: {"rms_norm", "x"} is "rms_norm: x", {"short_conv", "segment", 2, "history"} is
// "short_conv: segment 2 history".
struct Operand {
  std::string_view op;
  std::string_view name;
  std::optional<int64_t> element = std::nullopt;  // of an argument that is a list
  std::string_view part = {};                     // of that element

  std::string text() const;
};

// "op: argument: expected …, found …".
template <class Expected, class Found>
Status unexpected(const Operand& operand, const Expected& expected, const Found& found) {
  return Status::invalid(cat(operand.text(), ": expected ", expected, ", found ", found));
}

// Shape and strides of a view of any rank and element type; the view outlives it.
struct ViewShape {
  const int64_t* shape = nullptr;
  const int64_t* stride = nullptr;
  int rank = 0;
  bool has_data = false;

  template <class T, int Rank>
  ViewShape(const TensorView<T, Rank>& view)  // NOLINT: implicit by design, a view is passed as an argument
      : shape(view.shape), stride(view.stride), rank(Rank), has_data(view.data != nullptr) {}
};

// These extents, one for each axis; unless the view is empty, also a contiguous last axis, rows of a matrix that do not
// overlap, and memory.
Status check_view(const Operand& operand, ViewShape view, std::initializer_list<int64_t> expected);
// A matrix of at least one column, with the layout of check_view.
Status check_rows(const Operand& operand, ViewShape matrix);
inline Status check_same_shape(const Operand& operand, ViewShape matrix, ViewShape like) {
  return check_view(operand, matrix, {like.shape[0], like.shape[1]});
}
// A stored matrix with memory behind it; MXFP4 also has scales and a width that is a multiple of 32.
Status check_weight(const Operand& operand, const WeightView& weight);
// check_weight, and these extents.
Status check_weight(const Operand& operand, const WeightView& weight, int64_t rows, int64_t cols);
// Rows [begin, begin + count) of a segment lie inside the step's [0, num_rows).
Status check_segment(const Operand& operand, int64_t begin, int64_t count, int64_t num_rows);

}  // namespace tandem
