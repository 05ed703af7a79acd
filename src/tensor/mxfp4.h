// tensor/mxfp4.h: the OCP microscaling formats of K3's routed experts.
//
//   MXFP4 weight: value = E2M1[code] · 2^(e − 127), one E8M0 exponent byte e per group of 32 columns; two codes a
//   byte, low nibble = even column (compressed-tensors `mxfp4-pack-quantized`). e = 255 is NaN; e = 0 is 2^-127.
//   MXFP8 activation: groups of 32, E4M3 elements (max 448), scale exponent floor(log2(max|x|)) − 8 clamped to
//   [−127, 127] (the OCP rule; the rule of Moonshot's own stack is not published).
//   Source: OCP Microscaling Formats v1.0; released checkpoint layout.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/weight_view.h"

namespace tandem {

inline constexpr int64_t kMxGroup = 32;
inline constexpr uint8_t kE8M0Nan = 255;
inline constexpr float kE2M1Values[16] = {0.f,  0.5f,  1.f,  1.5f,  2.f,  3.f,  4.f,  6.f,
                                          -0.f, -0.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f};

float e8m0_to_f32(uint8_t e);  // 2^(e − 127); 255 is NaN

// Packs 32 values into 16 bytes and their scale byte: the exponent is floor(log2(max|x|)) − 2, the codes are the
// nearest E2M1 values (ties to even code), saturated at 6. Non-finite values are the caller's error.
void mxfp4_quantize_group(std::span<const float, kMxGroup> values, std::span<uint8_t, kMxGroup / 2> packed,
                          uint8_t& scale);

// One row of any weight format widened to f32: out[c] = W[row][c]. Exact.
void weight_row_to_f32(const WeightView& weight, int64_t row, std::span<float> out);

// x rounded to MXFP8 and widened back, in groups of 32 along the span (its length is a multiple of 32). A NaN stays NaN
// and does not set its group's scale; a group of zeros or with an infinity stays as it is.
void mxfp8_round(std::span<float> x);

}  // namespace tandem
