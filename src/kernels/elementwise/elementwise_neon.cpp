#include "kernels/elementwise/elementwise_simd.inl"

namespace tandem::neon {

void embedding(const ExecContext& ctx, const EmbeddingArgs& args) { embedding_simd(ctx, args); }
void add(const ExecContext& ctx, const AddArgs& args) { add_simd(ctx, args); }
void sigmoid_gate(const ExecContext& ctx, const SigmoidGateArgs& args) { sigmoid_gate_simd(ctx, args); }
void sigmoid_inplace(const ExecContext& ctx, const MatrixView<float>& args) { sigmoid_inplace_simd(ctx, args); }
void round_to_bf16(const ExecContext& ctx, const MatrixView<float>& args) { round_to_bf16_simd(ctx, args); }

}  // namespace tandem::neon
