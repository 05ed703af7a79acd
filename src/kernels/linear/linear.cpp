#include "kernels/linear/linear.h"

#include "base/cat.h"
#include "kernels/kernel_table.h"
#include "kernels/shape_check.h"

namespace tandem {
namespace {

Status check_output(const LinearOutput& output, int64_t tokens, int64_t in) {
  TANDEM_RETURN_IF_ERROR(check_weight("weight", output.weight));
  if (output.weight.cols != in) {
    return Status::invalid(cat("weight: expected ", in, " columns as x has, found ", output.weight.cols));
  }
  return check_shape("y", output.y, tokens, output.weight.rows);
}

}  // namespace

Status linear(const ExecContext& ctx, const LinearArgs& args) {
  TANDEM_RETURN_IF_ERROR(check_rows("linear: x", args.x));
  const int64_t T = args.x.shape[0];
  for (size_t i = 0; i < args.outputs.size(); ++i) {
    const Status status = check_output(args.outputs[i], T, args.x.shape[1]);
    if (!status.is_ok()) return Status::invalid(cat("linear: output ", i, ": ", status.message()));
  }
  if (T > 0 && !args.outputs.empty()) ctx.kernels.linear(ctx, args);
  return Status::ok();
}

}  // namespace tandem
