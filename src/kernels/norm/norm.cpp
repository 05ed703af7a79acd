#include "kernels/norm/norm.h"

#include "kernels/kernel_table.h"
#include "kernels/shape_check.h"

namespace tandem {
namespace {

Status check_eps(std::string_view op, float eps) {
  return eps > 0.f ? Status::ok() : unexpected({op, "eps"}, "a value > 0", eps);
}

}  // namespace

Status rms_norm(const ExecContext& ctx, const RmsNormArgs& args) {
  TANDEM_RETURN_IF_ERROR(check_rows({"rms_norm", "x"}, args.x));
  TANDEM_RETURN_IF_ERROR(check_same_shape({"rms_norm", "out"}, args.out, args.x));
  TANDEM_RETURN_IF_ERROR(check_view({"rms_norm", "weight"}, args.weight, {args.x.shape[1]}));
  TANDEM_RETURN_IF_ERROR(check_eps("rms_norm", args.eps));
  if (args.x.shape[0] > 0) ctx.kernels.rms_norm(ctx, args);
  return Status::ok();
}

Status rms_norm_gated(const ExecContext& ctx, const RmsNormGatedArgs& args) {
  TANDEM_RETURN_IF_ERROR(check_rows({"rms_norm_gated", "x"}, args.x));
  TANDEM_RETURN_IF_ERROR(check_same_shape({"rms_norm_gated", "gate"}, args.gate, args.x));
  TANDEM_RETURN_IF_ERROR(check_same_shape({"rms_norm_gated", "out"}, args.out, args.x));
  TANDEM_RETURN_IF_ERROR(check_view({"rms_norm_gated", "weight"}, args.weight, {args.x.shape[1]}));
  TANDEM_RETURN_IF_ERROR(check_eps("rms_norm_gated", args.eps));
  if (args.x.shape[0] > 0) ctx.kernels.rms_norm_gated(ctx, args);
  return Status::ok();
}

Status l2_norm(const ExecContext& ctx, const L2NormArgs& args) {
  TANDEM_RETURN_IF_ERROR(check_rows({"l2_norm", "x"}, args.x));
  TANDEM_RETURN_IF_ERROR(check_same_shape({"l2_norm", "out"}, args.out, args.x));
  TANDEM_RETURN_IF_ERROR(check_eps("l2_norm", args.eps));
  if (args.x.shape[0] > 0) ctx.kernels.l2_norm(ctx, args);
  return Status::ok();
}

}  // namespace tandem
