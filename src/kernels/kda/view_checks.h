// kernels/kda/view_checks.h: argument checks of the sequence-mixing operators (kernels/kda, kernels/mla): a Status
// names the operand, what it should be and what it is.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "base/cat.h"
#include "tandem/status.h"
#include "tensor/view.h"

namespace tandem {

template <int Rank>
std::string shape_text(const int64_t (&shape)[Rank]) {
  std::string text = "[";
  for (int axis = 0; axis < Rank; ++axis) text += cat(axis == 0 ? "" : ", ", shape[axis]);
  return text + "]";
}

// The view has this shape, a contiguous last axis, and memory behind it unless it is empty.
template <class T, int Rank>
Status check_view(const char* op, const char* name, const TensorView<T, Rank>& view,
                  const std::type_identity_t<int64_t[Rank]>& expected) {
  bool empty = false;
  for (int axis = 0; axis < Rank; ++axis) {
    if (view.shape[axis] != expected[axis]) {
      return Status::invalid(
          cat(op, ": ", name, " must have shape ", shape_text<Rank>(expected), ", got ", shape_text<Rank>(view.shape)));
    }
    empty = empty || view.shape[axis] == 0;
  }
  if (empty) return Status::ok();
  if (!view.last_axis_contiguous()) {
    return Status::invalid(
        cat(op, ": ", name, " must have a contiguous last axis, got stride ", view.stride[Rank - 1]));
  }
  if (view.data == nullptr) {
    return Status::invalid(cat(op, ": ", name, " of shape ", shape_text<Rank>(expected), " has no memory"));
  }
  return Status::ok();
}

// Rows [begin, begin + count) lie inside [0, num_rows).
inline Status check_segment(const char* op, int64_t segment, int64_t begin, int64_t count, int64_t num_rows) {
  if (begin < 0 || count < 0 || begin > num_rows || count > num_rows - begin) {
    return Status::invalid(cat(op, ": segment ", segment, " must lie in rows [0, ", num_rows, "), got begin ", begin,
                               " and ", count, " rows"));
  }
  return Status::ok();
}

}  // namespace tandem
