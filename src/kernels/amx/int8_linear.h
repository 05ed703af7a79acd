// kernels/amx/int8_linear.h: linear over int8 weights on AMX tiles, for the rows of prompts and of decodes alike.
#pragma once

#include <cstdint>

#include "kernels/linear/linear.h"

namespace tandem::amx {

// An int8 matrix whose sums fit 32 bits: up to 131,072 columns.
bool multiplies_int8(const WeightView& weight);

// y_i = x W_iᵀ for matrices that multiplies_int8() takes. Beside an f32 sum over exact weights, x is rounded to 24 bits
// below the largest value of its row: y is off by at most max(2^-22.9 · max |x|, 2^-126) / 2 · Σ_k |W[o][k]|, before
// f32 roundings of the result. Sums are whole numbers, exact in any order, so bits depend on the
// row of x and the row of W alone. A row of x with a value that is not finite gives NaN in all its results.
void int8_linear(const ExecContext& ctx, const MatrixView<const float>& x, const LinearOutput* outputs,
                 int64_t num_outputs);

}  // namespace tandem::amx
