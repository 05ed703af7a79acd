// weights/random_values.h: the numbers of a random checkpoint. Every value is a function of (stream, position) alone,
// in integer arithmetic and exactly rounded float operations: the same on every machine, for any number of threads.
//
//   stream(seed, name)  64 bits, FNV-1a of the name mixed with the seed
//   bits(stream, i)     SplitMix64 (Steele, Lea and Flood, 2014) as a counter-based generator
//   "Normal" values are sums of four uniform 16-bit numbers (Irwin-Hall): variance exact, tails end at 3.46 sigma.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "tensor/dtype.h"

namespace tandem {

enum class ValueKind : uint8_t {
  kNormal,       // center + spread · N(0, 1)
  kUniform,      // center ± spread
  kMxfp4Codes,   // packed E2M1 codes of RMS 2; the largest of every group of 32 is 3, 4 or 6
  kMxfp4Scales,  // E8M0 bytes around the one that gives the matrix RMS `spread`: minus one, equal or plus one
};

struct ValueRule {
  ValueKind kind = ValueKind::kNormal;
  float center = 0.f;
  float spread = 1.f;
  int64_t num_valid = -1;  // elements behind this one are zero; -1: all are valid
};

uint64_t random_stream(uint64_t seed, std::string_view tensor_name);

// Elements [first, first + n) of a tensor into `out`, n = out.size() / dtype_size. dtype is BF16 or F32, and U8 for the
// MXFP4 kinds; kMxfp4Codes begins and ends at whole groups of 16 bytes.
void fill_random(const ValueRule& rule, DType dtype, uint64_t stream, uint64_t first, std::span<std::byte> out);

}  // namespace tandem
