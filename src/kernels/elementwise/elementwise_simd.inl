// kernels/elementwise/elementwise_simd.inl: the small row operators over Vec.
#include "kernels/backend_entries.h"
#include "kernels/simd/scratch.h"
#include "kernels/simd/vec_math.h"
#include "kernels/simd/weight_rows.h"

namespace tandem {
namespace {

using namespace simd;

TANDEM_INLINE void embed_row(const WeightView& table, int64_t row, float* out) {
  const char* data = static_cast<const char*>(table.data) + row * row_bytes(table.format, table.cols);
  switch (table.format) {
    case WeightFormat::kF32: return widen_columns<WeightFormat::kF32>(data, nullptr, 0, table.cols, out);
    case WeightFormat::kF16: return widen_columns<WeightFormat::kF16>(data, nullptr, 0, table.cols, out);
    case WeightFormat::kBF16: return widen_columns<WeightFormat::kBF16>(data, nullptr, 0, table.cols, out);
    case WeightFormat::kInt8: {
      widen_columns<WeightFormat::kInt8>(data, nullptr, 0, table.cols, out);
      const Vec scale = broadcast(load_scale(table.scale + row * static_cast<int64_t>(sizeof(float))));
      for_each_block(table.cols, [&](int64_t i, auto block)
                                     TANDEM_INLINE_LAMBDA { store(out + i, scale * load(out + i, block), block); });
      return;
    }
    case WeightFormat::kMxfp4:
      for (int64_t k = 0; k < table.cols; k += kGroup) {
        float group[kGroup];
        widen_columns<WeightFormat::kMxfp4>(data, table.scale + row * (table.cols / kGroup), k, kGroup, group);
        join_even_odd(group, kGroup, out + k);
      }
      return;
  }
}

void embedding_simd(const ExecContext& ctx, const EmbeddingArgs& a) {
  const TokenId* tokens = a.tokens.data();
  for_each_row(ctx, a.out.shape[0], a.out.shape[1],
               [&](int64_t t, int) { embed_row(a.table, tokens[t].value, row_of(a.out, t)); });
}

void add_simd(const ExecContext& ctx, const AddArgs& args) {
  const int64_t D = args.a.shape[1];
  for_each_row(ctx, args.a.shape[0], D, [&](int64_t t, int) {
    const float* a = row_of(args.a, t);
    const float* b = row_of(args.b, t);
    float* out = row_of(args.out, t);
    for_each_block(D, [&](int64_t d, auto block)
                          TANDEM_INLINE_LAMBDA { store(out + d, load(a + d, block) + load(b + d, block), block); });
  });
}

void sigmoid_gate_simd(const ExecContext& ctx, const SigmoidGateArgs& a) {
  const int64_t D = a.x.shape[1];
  for_each_row(ctx, a.x.shape[0], 2 * D, [&](int64_t t, int) {
    const float* x = row_of(a.x, t);
    const float* gate = row_of(a.gate, t);
    float* out = row_of(a.out, t);
    for_each_block(D, [&](int64_t d, auto block) TANDEM_INLINE_LAMBDA {
      store(out + d, load(x + d, block) * sigmoid(load(gate + d, block)), block);
    });
  });
}

void sigmoid_inplace_simd(const ExecContext& ctx, const MatrixView<float>& x) {
  const int64_t D = x.shape[1];
  for_each_row(ctx, x.shape[0], 2 * D, [&](int64_t t, int) {
    float* row = row_of(x, t);
    for_each_block(
        D, [&](int64_t d, auto block) TANDEM_INLINE_LAMBDA { store(row + d, sigmoid(load(row + d, block)), block); });
  });
}

void round_to_bf16_simd(const ExecContext& ctx, const MatrixView<float>& x) {
  const int64_t D = x.shape[1];
  for_each_row(ctx, x.shape[0], D, [&](int64_t t, int) {
    float* row = row_of(x, t);
    for_each_block(D, [&](int64_t d, auto block)
                          TANDEM_INLINE_LAMBDA { store(row + d, simd::round_to_bf16(load(row + d, block)), block); });
  });
}

}  // namespace
}  // namespace tandem
