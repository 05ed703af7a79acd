// tests/weights/widened.h: the exact f32 values of a stored matrix.
#pragma once

#include <span>
#include <vector>

#include "tensor/mxfp4.h"
#include "tensor/weight_view.h"

namespace tandem {

inline std::vector<float> widened(const WeightView& view) {
  std::vector<float> values(static_cast<size_t>(view.rows * view.cols));
  for (int64_t r = 0; r < view.rows; ++r) {
    weight_row_to_f32(view, r,
                      std::span(values).subspan(static_cast<size_t>(r * view.cols), static_cast<size_t>(view.cols)));
  }
  return values;
}

}  // namespace tandem
