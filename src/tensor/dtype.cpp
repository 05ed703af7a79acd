#include "tensor/dtype.h"

#include <array>
#include <utility>

namespace tandem {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int64_t size;
};

constexpr std::array kDTypes = {
    DTypeRow{DType::kF32, "F32", 4},        DTypeRow{DType::kF64, "F64", 8},
    DTypeRow{DType::kF16, "F16", 2},        DTypeRow{DType::kBF16, "BF16", 2},
    DTypeRow{DType::kF8E4M3, "F8_E4M3", 1}, DTypeRow{DType::kF8E5M2, "F8_E5M2", 1},
    DTypeRow{DType::kF8E8M0, "F8_E8M0", 1}, DTypeRow{DType::kI8, "I8", 1},
    DTypeRow{DType::kI16, "I16", 2},        DTypeRow{DType::kI32, "I32", 4},
    DTypeRow{DType::kI64, "I64", 8},        DTypeRow{DType::kU8, "U8", 1},
    DTypeRow{DType::kU16, "U16", 2},        DTypeRow{DType::kU32, "U32", 4},
    DTypeRow{DType::kU64, "U64", 8},        DTypeRow{DType::kBool, "BOOL", 1},
};

const DTypeRow& row(DType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }

static_assert([] {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (static_cast<size_t>(kDTypes[i].dtype) != i) return false;
  }
  return true;
}());

}  // namespace

int64_t dtype_size(DType dtype) { return row(dtype).size; }
std::string_view dtype_name(DType dtype) { return row(dtype).name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeRow& r : kDTypes) {
    if (r.name == name) return r.dtype;
  }
  return std::nullopt;
}

float to_f32(f16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1fu;
  const uint32_t mantissa = x.bits & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // exact: subnormal or zero
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

f16 to_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // rounds past 65504
  if (magnitude < 0x38800000u) {
    // Subnormal half: adding 0.5 aligns the mantissa so that the FPU rounds at 2^-24, ties to even.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

}  // namespace tandem
