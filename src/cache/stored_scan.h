// cache/stored_scan.h: does stored memory hold numbers only? Asked before anything is shared.
#pragma once

#include <cstddef>
#include <span>

#include "tensor/dtype.h"

namespace tandem {

// No NaN and no infinity; dtype is kF32 or kBF16. The poison of unwritten slots is a NaN.
bool all_finite(std::span<const std::byte> stored, DType dtype);

}  // namespace tandem
