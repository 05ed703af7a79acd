// kernels/kda/kda_gate.cpp: argument checks of kda_gate; the work is the table's.
#include "kernels/kda/kda.h"
#include "kernels/kernel_table.h"
#include "kernels/shape_check.h"

namespace tandem {

Status kda_gate(const ExecContext& ctx, const KdaGateArgs& args) {
  constexpr std::string_view kOp = "kda_gate";
  const int64_t rows = args.z.shape[0];
  const int64_t heads = args.z.shape[1];
  const int64_t key_dim = args.z.shape[2];
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "z"}, args.z, {rows, heads, key_dim}));
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "g"}, args.g, {rows, heads, key_dim}));
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "a_log"}, args.a_log, {heads}));
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "dt_bias"}, args.dt_bias, {heads * key_dim}));
  if (args.lower_bound.has_value() && !(*args.lower_bound >= -5.f && *args.lower_bound < 0.f)) {
    return unexpected({kOp, "lower_bound"}, "a value in [-5, 0)", *args.lower_bound);
  }
  if (rows == 0 || heads == 0 || key_dim == 0) return Status::ok();
  ctx.kernels.kda_gate(ctx, args);
  return Status::ok();
}

}  // namespace tandem
