#include "kernels/elementwise/elementwise.h"

#include "kernels/kernel_table.h"
#include "kernels/shape_check.h"

namespace tandem {

Status embedding(const ExecContext& ctx, const EmbeddingArgs& args) {
  TANDEM_RETURN_IF_ERROR(check_weight({"embedding", "table"}, args.table));
  TANDEM_RETURN_IF_ERROR(
      check_view({"embedding", "out"}, args.out, {static_cast<int64_t>(args.tokens.size()), args.table.cols}));
  for (size_t t = 0; t < args.tokens.size(); ++t) {
    const int32_t id = args.tokens[t].value;
    if (id < 0 || id >= args.table.rows) {
      return unexpected({"embedding", "token", t}, cat("an id in [0, ", args.table.rows, ")"), id);
    }
  }
  if (!args.tokens.empty()) ctx.kernels.embedding(ctx, args);
  return Status::ok();
}

Status add(const ExecContext& ctx, const AddArgs& args) {
  TANDEM_RETURN_IF_ERROR(check_rows({"add", "a"}, args.a));
  TANDEM_RETURN_IF_ERROR(check_same_shape({"add", "b"}, args.b, args.a));
  TANDEM_RETURN_IF_ERROR(check_same_shape({"add", "out"}, args.out, args.a));
  if (args.a.shape[0] > 0) ctx.kernels.add(ctx, args);
  return Status::ok();
}

Status sigmoid_gate(const ExecContext& ctx, const SigmoidGateArgs& args) {
  TANDEM_RETURN_IF_ERROR(check_rows({"sigmoid_gate", "x"}, args.x));
  TANDEM_RETURN_IF_ERROR(check_same_shape({"sigmoid_gate", "gate"}, args.gate, args.x));
  TANDEM_RETURN_IF_ERROR(check_same_shape({"sigmoid_gate", "out"}, args.out, args.x));
  if (args.x.shape[0] > 0) ctx.kernels.sigmoid_gate(ctx, args);
  return Status::ok();
}

Status sigmoid_inplace(const ExecContext& ctx, const MatrixView<float>& x) {
  TANDEM_RETURN_IF_ERROR(check_rows({"sigmoid_inplace", "x"}, x));
  if (x.shape[0] > 0) ctx.kernels.sigmoid_inplace(ctx, x);
  return Status::ok();
}

Status round_to_bf16(const ExecContext& ctx, const MatrixView<float>& x) {
  TANDEM_RETURN_IF_ERROR(check_rows({"round_to_bf16", "x"}, x));
  if (x.shape[0] > 0) ctx.kernels.round_to_bf16(ctx, x);
  return Status::ok();
}

}  // namespace tandem
