// tests/kernels/simd_functions.inl: fills a SimdFunctions table in the instruction set of the including file.
#include "kernels/simd/mxfp8_rows.h"
#include "kernels/simd/vec_math.h"
#include "kernels/simd_functions.h"

namespace tandem::test {
namespace {

using namespace simd;

#define TANDEM_MAP(function)                                                                                          \
  [](const float* x, int64_t n, float* out) {                                                                         \
    for_each_block(n, [&](int64_t i, auto block)                                                                      \
                          TANDEM_INLINE_LAMBDA { store(out + i, simd::function(simd::load(x + i, block)), block); }); \
  }
#define TANDEM_WIDEN(format)                                                                  \
  [](const uint16_t* x, int64_t n, float* out) {                                              \
    for_each_block(n, [&](int64_t i, auto block) TANDEM_INLINE_LAMBDA {                       \
      store(out + i, load_weight<format>(reinterpret_cast<const char*>(x), i, block), block); \
    });                                                                                       \
  }

TANDEM_INLINE SimdFunctions functions_of_this_set(const char* name) {
  SimdFunctions f{};
  f.name = name;
  f.lanes = Vec::kLanes;
  f.exp = TANDEM_MAP(exp);
  f.sigmoid = TANDEM_MAP(sigmoid);
  f.tanh = TANDEM_MAP(tanh);
  f.softplus = TANDEM_MAP(softplus);
  f.round_even = TANDEM_MAP(round_even);
  f.round_to_bf16 = TANDEM_MAP(round_to_bf16);
  f.widen_bf16 = TANDEM_WIDEN(WeightFormat::kBF16);
  f.widen_f16 = TANDEM_WIDEN(WeightFormat::kF16);
  f.mxfp8_round = [](const float* x, int64_t n, float* out) { mxfp8_round_row(x, n, out); };
  f.decode_mxfp4 = [](const uint8_t* packed, uint8_t scale, float* out) {
    Vec group[kGroupVecs];
    decode_mxfp4_group(packed, scale, group);
    for (int i = 0; i < kGroupVecs; ++i) store(out + i * Vec::kLanes, group[i]);
  };
  f.e8m0 = [](uint8_t e) { return e8m0_scale(e); };
  f.sums = [](const float* x, float* one, float* four) {
    Vec v[4];
    for (int i = 0; i < 4; ++i) {
      v[i] = load(x + i * Vec::kLanes);
      one[i] = sum(v[i]);
    }
    sum4(v, four);
  };
  f.many_sums = [](const float* x, float* one, float* eight, float* sixteen) {
    Vec v[16];
    for (int i = 0; i < 16; ++i) {
      v[i] = load(x + i * Vec::kLanes);
      one[i] = sum(v[i]);
    }
    sum8(v, eight);
    sum16(v, sixteen);
  };
  f.extrema = [](const float* a, const float* b, int64_t n, float* min_out, float* max_out) {
    for_each_block(n, [&](int64_t i, auto block) TANDEM_INLINE_LAMBDA {
      store(min_out + i, min(load(a + i, block), load(b + i, block)), block);
      store(max_out + i, max(load(a + i, block), load(b + i, block)), block);
    });
  };
  return f;
}

}  // namespace
}  // namespace tandem::test
