#include "cache/stored_scan.h"

#include <cstdint>
#include <cstring>

namespace tandem {
namespace {

// An exponent of ones only is an infinity or a NaN. No early exit inside a block: the loop is one of vector compares.
template <class Bits>
bool exponents_below(std::span<const std::byte> stored, Bits exponent) {
  constexpr size_t kBlock = 4096 / sizeof(Bits);
  const size_t count = stored.size() / sizeof(Bits);
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t end = begin + kBlock < count ? begin + kBlock : count;
    Bits found = 0;
    for (size_t i = begin; i < end; ++i) {
      Bits bits;
      std::memcpy(&bits, stored.data() + i * sizeof(Bits), sizeof(bits));
      found = static_cast<Bits>(found | ((bits & exponent) == exponent ? 1 : 0));
    }
    if (found != 0) return false;
  }
  return true;
}

}  // namespace

bool all_finite(std::span<const std::byte> stored, DType dtype) {
  return dtype == DType::kF32 ? exponents_below<uint32_t>(stored, 0x7f800000u)
                              : exponents_below<uint16_t>(stored, 0x7f80u);
}

}  // namespace tandem
