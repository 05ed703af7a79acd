#include "tensor/stored_floats.h"

#include <cstring>

#include "base/check.h"

namespace tandem {

void load_floats(const void* stored, DType dtype, std::span<float> values) {
  if (values.empty()) return;
  if (dtype == DType::kF32) {
    std::memcpy(values.data(), stored, values.size_bytes());
    return;
  }
  TANDEM_CHECK(dtype == DType::kBF16, "stored floats are f32 or bf16");
  const auto* halves = static_cast<const bf16*>(stored);
  for (size_t i = 0; i < values.size(); ++i) values[i] = to_f32(halves[i]);
}

void store_floats(std::span<const float> values, DType dtype, void* stored) {
  if (values.empty()) return;
  if (dtype == DType::kF32) {
    std::memcpy(stored, values.data(), values.size_bytes());
    return;
  }
  TANDEM_CHECK(dtype == DType::kBF16, "stored floats are f32 or bf16");
  auto* halves = static_cast<bf16*>(stored);
  for (size_t i = 0; i < values.size(); ++i) halves[i] = to_bf16(values[i]);
}

}  // namespace tandem
