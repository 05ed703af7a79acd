// tensor/int8_rows.h: a row of f32 weights as WeightFormat::kInt8 (tensor/weight_view.h).
#pragma once

#include <cstddef>
#include <span>

namespace tandem {

// Symmetric, a group of 64 columns at a time: scale = max |w| / 127 rounded up to bf16, code = w / scale rounded to
// nearest. |code · scale − w| <= scale / 2, and scale <= max |w| / 127 · (1 + 2^-7) for normal scales. A group with a
// value that is not finite has a NaN scale, so that what is multiplied by it shows. `out` has row_bytes() bytes.
void int8_quantize_row(std::span<const float> values, std::byte* out);

}  // namespace tandem
