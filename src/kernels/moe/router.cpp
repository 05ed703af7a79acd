#include "kernels/moe/router.h"

#include "kernels/kernel_table.h"
#include "kernels/shape_check.h"

namespace tandem {

Status router_select(const ExecContext& ctx, const RouterSelectArgs& args) {
  constexpr std::string_view kOp = "router_select";
  TANDEM_RETURN_IF_ERROR(check_rows({kOp, "logits"}, args.logits));
  const int64_t T = args.logits.shape[0];
  const int64_t E = args.logits.shape[1];
  const int64_t k = args.topk_ids.shape[1];
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "bias"}, args.bias, {E}));
  TANDEM_RETURN_IF_ERROR(check_rows({kOp, "topk_ids"}, args.topk_ids));
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "topk_ids"}, args.topk_ids, {T, k}));
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "topk_weights"}, args.topk_weights, {T, k}));
  if (args.num_groups < 1 || E % args.num_groups != 0) {
    return unexpected({kOp, "num_groups"}, cat("a number that divides the ", E, " experts"), args.num_groups);
  }
  if (args.topk_group < 1 || args.topk_group > args.num_groups) {
    return unexpected({kOp, "topk_group"}, cat("a number in [1, ", args.num_groups, "]"), args.topk_group);
  }
  const int64_t candidates = E / args.num_groups * args.topk_group;
  if (k > candidates) {
    return unexpected({kOp, "topk_ids"}, cat("at most ", candidates, " experts a token (those of the kept groups)"), k);
  }
  ctx.kernels.router_select(ctx, args);
  return Status::ok();
}

}  // namespace tandem
