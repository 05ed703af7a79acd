// model/layers/rows.h: activation matrices of a step and their rounding. Scratch lives in the step's arena.
#pragma once

#include "kernels/elementwise/elementwise.h"
#include "model/forward.h"

namespace tandem {

inline MatrixView<float> alloc_rows(const StepContext& step, int64_t rows, int64_t columns) {
  return MatrixView<float>::contiguous(step.exec.arena.alloc<float>(rows * columns).data(), {rows, columns});
}

inline VectorView<const float> as_vector(const std::vector<float>& values) {
  return VectorView<const float>::contiguous(values.data(), {static_cast<int64_t>(values.size())});
}

// Rounds an operator's output when activations are bf16; nothing otherwise.
inline Status round_activations(const StepContext& step, const MatrixView<float>& rows) {
  if (step.options.activation_dtype != DType::kBF16) return Status::ok();
  return round_to_bf16(step.exec, rows);
}

inline int64_t num_rows(const StepContext& step) { return step.num_rows; }

inline void tap(const StepContext& step, Tap what, int64_t layer, const MatrixView<const float>& rows) {
  if (step.observer != nullptr) step.observer->on_tensor(what, layer, rows);
}

}  // namespace tandem
