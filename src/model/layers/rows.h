// model/layers/rows.h: activation matrices of a step and their rounding. Scratch lives in the step's arena.
#pragma once

#include "kernels/elementwise/elementwise.h"
#include "kernels/linear/linear.h"
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

// Those of `rows` activations, the plan's or its wanted ones, that belong to prompts.
inline std::span<const RowRange> prefill_rows(const StepContext& step, int64_t rows) {
  return rows == static_cast<int64_t>(step.plan.tokens.size()) ? step.prefill : step.wanted_prefill;
}

inline Status project(const StepContext& step, const MatrixView<const float>& x,
                      std::span<const LinearOutput> outputs) {
  return linear(step.exec, {.x = x, .outputs = outputs, .prefill = prefill_rows(step, x.shape[0])});
}

inline int64_t num_rows(const StepContext& step) { return step.num_rows; }

inline void tap(const StepContext& step, Tap what, int64_t layer, const MatrixView<const float>& rows) {
  if (step.observer != nullptr) step.observer->on_tensor(what, layer, rows);
}

}  // namespace tandem
