// tensor/stored_floats.h: f32 values at rest as f32 or bf16: the crossing between a cache and its working form.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace tandem {

// dtype is kF32 or kBF16. Loading widens exactly; storing rounds to nearest even. `stored` and `values` do not overlap.
void load_floats(const void* stored, DType dtype, std::span<float> values);
void store_floats(std::span<const float> values, DType dtype, void* stored);

}  // namespace tandem
