#include "kernels/moe/router.h"

#include "base/cat.h"
#include "kernels/kernel_table.h"
#include "kernels/shape_check.h"

namespace tandem {

Status router_select(const ExecContext& ctx, const RouterSelectArgs& args) {
  TANDEM_RETURN_IF_ERROR(check_rows("router_select: logits", args.logits));
  const int64_t T = args.logits.shape[0];
  const int64_t E = args.logits.shape[1];
  const int64_t k = args.topk_ids.shape[1];
  TANDEM_RETURN_IF_ERROR(check_vector("router_select: bias", args.bias, E));
  TANDEM_RETURN_IF_ERROR(check_shape("router_select: topk_ids", args.topk_ids, T, k));
  TANDEM_RETURN_IF_ERROR(check_shape("router_select: topk_weights", args.topk_weights, T, k));
  if (args.num_groups < 1 || E % args.num_groups != 0) {
    return Status::invalid(
        cat("router_select: expected a number of groups that divides the ", E, " experts, found ", args.num_groups));
  }
  if (args.topk_group < 1 || args.topk_group > args.num_groups) {
    return Status::invalid(
        cat("router_select: expected topk_group in [1, ", args.num_groups, "], found ", args.topk_group));
  }
  const int64_t candidates = E / args.num_groups * args.topk_group;
  if (k > candidates) {
    return Status::invalid(cat("router_select: expected at most ", candidates,
                               " experts a token (those of the kept groups), found k = ", k));
  }
  ctx.kernels.router_select(ctx, args);
  return Status::ok();
}

}  // namespace tandem
