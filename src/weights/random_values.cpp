#include "weights/random_values.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace tandem {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
constexpr size_t kCodeBytesPerGroup = 16;
constexpr uint64_t kWordsPerGroup = 4;  // 32 codes of 8 random bits

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
uint64_t bits(uint64_t stream, uint64_t i) { return mix(stream + (i + 1) * kGolden); }

// Four uniform 16-bit numbers: mean 2 · 65535, variance 4 · (2^32 − 1) / 12.
constexpr float kSumToSigma = 1.f / 37837.2266f;
float normal(uint64_t word) {
  const auto sum = static_cast<int32_t>((word & 0xffff) + (word >> 16 & 0xffff) + (word >> 32 & 0xffff) + (word >> 48));
  return static_cast<float>(sum - 131070) * kSumToSigma;
}
// In [-1, 1), from 24 bits: exact in a float.
float symmetric(uint64_t word) { return static_cast<float>(static_cast<int32_t>(word >> 40) - 0x800000) * 0x1p-23f; }

// How many of 128 magnitudes get each E2M1 code: N(0, 2²) rounded to the nearest value. The mean square is 4.006.
constexpr std::array<uint8_t, 8> kMagnitudeCounts = {13, 24, 23, 19, 22, 17, 8, 2};
constexpr float kCodeRms = 2.f;
constexpr uint8_t kLeastGroupMaximum = 5;  // the code of 3

constexpr std::array<uint8_t, 256> kCodeOfByte = [] {
  std::array<uint8_t, 256> table{};
  size_t next = 0;
  for (uint8_t code = 0; code < 8; ++code) {
    for (uint8_t i = 0; i < kMagnitudeCounts[code]; ++i) {
      table[next] = code;
      table[next + 128] = code == 0 ? code : static_cast<uint8_t>(code | 8);  // no negative zeros
      ++next;
    }
  }
  return table;
}();

float value_at(const ValueRule& rule, uint64_t stream, uint64_t i) {
  if (rule.num_valid >= 0 && i >= static_cast<uint64_t>(rule.num_valid)) return 0.f;
  const uint64_t word = bits(stream, i);
  return rule.center + rule.spread * (rule.kind == ValueKind::kNormal ? normal(word) : symmetric(word));
}

void fill_codes(uint64_t stream, uint64_t first_byte, std::span<std::byte> out) {
  TANDEM_CHECK(first_byte % kCodeBytesPerGroup == 0 && out.size() % kCodeBytesPerGroup == 0, "whole groups");
  for (size_t begin = 0; begin < out.size(); begin += kCodeBytesPerGroup) {
    const uint64_t group = (first_byte + begin) / kCodeBytesPerGroup;
    uint8_t codes[32];
    uint8_t largest = 0;
    for (uint64_t w = 0; w < kWordsPerGroup; ++w) {
      const uint64_t word = bits(stream, group * kWordsPerGroup + w);
      for (uint64_t i = 0; i < 8; ++i) {
        const uint8_t code = kCodeOfByte[word >> (8 * i) & 0xff];
        codes[8 * w + i] = code;
        largest = std::max<uint8_t>(largest, code & 7);
      }
    }
    // A group that wastes its scale (about one in 10^10) would not come out of a quantiser.
    if (largest < kLeastGroupMaximum) codes[group % 32] = kLeastGroupMaximum + static_cast<uint8_t>(group % 3);
    for (size_t i = 0; i < kCodeBytesPerGroup; ++i) {
      out[begin + i] = static_cast<std::byte>(codes[2 * i] | codes[2 * i + 1] << 4);
    }
  }
}

// Scales 2^(e−1), 2^e, 2^(e+1) with probabilities 1/4, 1/2, 1/4 have RMS 1.25 · 2^e.
void fill_scales(float rms, uint64_t stream, uint64_t first, std::span<std::byte> out) {
  const int exponent = std::ilogb(rms / (kCodeRms * 1.25f) * 1.41421356f);
  for (size_t i = 0; i < out.size(); ++i) {
    const uint64_t word = bits(stream, first + i);
    const int jitter = static_cast<int>(word >> 63) - static_cast<int>(word >> 62 & 1);
    out[i] = static_cast<std::byte>(std::clamp(exponent + jitter + 127, 1, 254));
  }
}

}  // namespace

uint64_t random_stream(uint64_t seed, std::string_view tensor_name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : tensor_name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return mix(hash ^ mix(seed + kGolden));
}

void fill_random(const ValueRule& rule, DType dtype, uint64_t stream, uint64_t first, std::span<std::byte> out) {
  if (rule.kind == ValueKind::kMxfp4Codes) return fill_codes(stream, first, out);
  if (rule.kind == ValueKind::kMxfp4Scales) return fill_scales(rule.spread, stream, first, out);
  if (dtype == DType::kBF16) {
    for (size_t i = 0; i < out.size() / sizeof(bf16); ++i) {
      const bf16 value = to_bf16(value_at(rule, stream, first + i));
      std::memcpy(out.data() + i * sizeof(bf16), &value, sizeof(bf16));
    }
    return;
  }
  TANDEM_CHECK(dtype == DType::kF32, "random values are BF16 or F32");
  for (size_t i = 0; i < out.size() / sizeof(float); ++i) {
    const float value = value_at(rule, stream, first + i);
    std::memcpy(out.data() + i * sizeof(float), &value, sizeof(float));
  }
}

}  // namespace tandem
