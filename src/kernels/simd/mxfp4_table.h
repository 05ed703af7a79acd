// kernels/simd/mxfp4_table.h: the sixteen E2M1 values times every E8M0 scale. Looking a group's row up costs a load
// where scaling the sixteen values costs a multiplication on the ports that are short in a decode; a model uses few
// scales, so their rows stay in L1.
#pragma once

namespace tandem::simd {

struct alignas(64) ScaledE2M1 {
  float row[256][16];  // [scale byte][code]
};
extern const ScaledE2M1 kScaledE2M1;

}  // namespace tandem::simd
