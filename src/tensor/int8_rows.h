// tensor/int8_rows.h: a row of f32 weights as WeightFormat::kInt8 (tensor/weight_view.h).
#pragma once

#include <cstdint>
#include <span>

namespace tandem {

// Symmetric, one scale a row: scale = max |w| / 127 rounded up to 16 significant bits, so that code · scale is exact in
// f32; code = w / scale rounded to nearest. |code · scale − w| <= scale / 2 · (1 + 2^-16) (the quotient is rounded,
// too), and scale <= max |w| / 127 · (1 + 2^-15) for normal scales. A row with a value that is not finite has codes of
// 0 and a NaN scale, so that what is multiplied by it shows. Returns the scale; `codes` has row_bytes() bytes, those
// behind the row's end become 0.
float int8_quantize_row(std::span<const float> values, int8_t* codes);

}  // namespace tandem
