#include "kernels/linear/linear.h"

#include "kernels/kernel_table.h"
#include "kernels/shape_check.h"

namespace tandem {

Status linear(const ExecContext& ctx, const LinearArgs& args) {
  TANDEM_RETURN_IF_ERROR(check_rows({"linear", "x"}, args.x));
  const int64_t T = args.x.shape[0];
  const int64_t in = args.x.shape[1];
  for (size_t i = 0; i < args.outputs.size(); ++i) {
    const LinearOutput& output = args.outputs[i];
    TANDEM_RETURN_IF_ERROR(check_weight({"linear", "output", i, "weight"}, output.weight, output.weight.rows, in));
    TANDEM_RETURN_IF_ERROR(check_view({"linear", "output", i, "y"}, output.y, {T, output.weight.rows}));
  }
  if (T > 0 && !args.outputs.empty()) ctx.kernels.linear(ctx, args);
  return Status::ok();
}

}  // namespace tandem
