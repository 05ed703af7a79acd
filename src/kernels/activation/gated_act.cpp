#include "kernels/activation/gated_act.h"

#include "kernels/kernel_table.h"
#include "kernels/shape_check.h"

namespace tandem {

Status check_gated_act_params(std::string_view op, const GatedActParams& params) {
  if (params.kind != GatedAct::kSitu) return Status::ok();
  if (!(params.beta > 0.f)) return unexpected({op, "beta"}, "a value > 0", params.beta);
  if (params.linear_beta.has_value() && !(*params.linear_beta > 0.f)) {
    return unexpected({op, "linear_beta"}, "a value > 0", *params.linear_beta);
  }
  return Status::ok();
}

Status gated_act(const ExecContext& ctx, const GatedActArgs& args) {
  TANDEM_RETURN_IF_ERROR(check_rows({"gated_act", "gate"}, args.gate));
  TANDEM_RETURN_IF_ERROR(check_same_shape({"gated_act", "up"}, args.up, args.gate));
  TANDEM_RETURN_IF_ERROR(check_same_shape({"gated_act", "out"}, args.out, args.gate));
  TANDEM_RETURN_IF_ERROR(check_gated_act_params("gated_act", args.params));
  if (args.gate.shape[0] > 0) ctx.kernels.gated_act(ctx, args);
  return Status::ok();
}

}  // namespace tandem
