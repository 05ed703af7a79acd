// tensor/dtype.h: element types as safetensors spells them, and the scalar conversions between them.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tandem {

enum class DType : uint8_t {
  kF32,
  kF64,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI8,
  kI16,
  kI32,
  kI64,
  kU8,
  kU16,
  kU32,
  kU64,
  kBool
};

int64_t dtype_size(DType dtype);           // bytes an element
std::string_view dtype_name(DType dtype);  // "F32", "BF16", … as in a safetensors header
std::optional<DType> dtype_from_name(std::string_view name);

struct bf16 {
  uint16_t bits = 0;
};
struct f16 {
  uint16_t bits = 0;
};
static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2);

inline float to_f32(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

// Round to nearest, ties to even; NaN stays NaN (quiet), overflow becomes infinity.
inline bf16 to_bf16(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return {static_cast<uint16_t>(bits >> 16)};
}
inline float round_bf16(float x) { return to_f32(to_bf16(x)); }

float to_f32(f16 x);  // exact, subnormals included
f16 to_f16(float x);  // round to nearest even

}  // namespace tandem
