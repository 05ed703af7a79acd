#include "kernels/moe/experts.h"

#include "base/check.h"
#include "kernels/kernel_table.h"
#include "kernels/shape_check.h"
#include "tensor/mxfp4.h"

namespace tandem {
namespace {

constexpr std::string_view kOp = "moe_experts";

Status check_ids(const MatrixView<const int32_t>& ids, int64_t E) {
  for (int64_t t = 0; t < ids.shape[0]; ++t) {
    for (int64_t j = 0; j < ids.shape[1]; ++j) {
      const int32_t id = ids(t, j);
      if (id < 0 || id >= E) {
        return unexpected({kOp, "token", t, cat("slot ", j)}, cat("an expert in [0, ", E, ")"), id);
      }
    }
  }
  return Status::ok();
}

}  // namespace

Status check_expert_weights(std::span<const ExpertWeights> experts, int64_t Dl, int64_t I) {
  if (experts.empty()) return unexpected({kOp, "experts"}, "at least one expert", "none");
  for (size_t e = 0; e < experts.size(); ++e) {
    TANDEM_RETURN_IF_ERROR(check_weight({kOp, "expert", e, "w1"}, experts[e].w1, I, Dl));
    TANDEM_RETURN_IF_ERROR(check_weight({kOp, "expert", e, "w3"}, experts[e].w3, I, Dl));
    TANDEM_RETURN_IF_ERROR(check_weight({kOp, "expert", e, "w2"}, experts[e].w2, Dl, I));
  }
  return Status::ok();
}

Status moe_experts(const ExecContext& ctx, const MoeExpertsArgs& args) {
  TANDEM_RETURN_IF_ERROR(check_rows({kOp, "z"}, args.z));
  const int64_t T = args.z.shape[0];
  const int64_t Dl = args.z.shape[1];
  const int64_t k = args.topk_ids.shape[1];
  TANDEM_RETURN_IF_ERROR(check_rows({kOp, "topk_ids"}, args.topk_ids));
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "topk_ids"}, args.topk_ids, {T, k}));
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "topk_weights"}, args.topk_weights, {T, k}));
  TANDEM_RETURN_IF_ERROR(check_same_shape({kOp, "out"}, args.out, args.z));
  TANDEM_RETURN_IF_ERROR(check_gated_act_params(kOp, args.act));
  // One expert stands for all of them here: the layer's weights were checked when they were loaded.
  const int64_t I = args.experts.empty() ? 0 : args.experts[0].w1.rows;
  TANDEM_RETURN_IF_ERROR(check_expert_weights(args.experts.first(args.experts.empty() ? 0 : 1), Dl, I));
  TANDEM_DCHECK(check_expert_weights(args.experts, Dl, I).is_ok(), "check_expert_weights passed at load");
  if (args.expert_act == ExpertAct::kMxfp8 && (Dl % kMxGroup != 0 || I % kMxGroup != 0)) {
    return unexpected({kOp, "expert_act"}, "widths that are multiples of 32 for MXFP8", cat(Dl, " and ", I));
  }
  TANDEM_RETURN_IF_ERROR(check_ids(args.topk_ids, static_cast<int64_t>(args.experts.size())));
  if (!are_row_ranges(args.prefill, T)) return unexpected({kOp, "prefill"}, "ascending ranges of rows", "others");
  if (T == 0) return Status::ok();
  if (ctx.kernels.moe_experts_prefill == nullptr || args.prefill.empty()) {
    ctx.kernels.moe_experts(ctx, args);
    return Status::ok();
  }
  for_each_run(args.prefill, T, [&](int64_t begin, int64_t end, bool is_prefill) {
    MoeExpertsArgs run = args;
    run.z = args.z.rows(begin, end - begin);
    run.topk_ids = args.topk_ids.rows(begin, end - begin);
    run.topk_weights = args.topk_weights.rows(begin, end - begin);
    run.out = args.out.rows(begin, end - begin);
    is_prefill ? ctx.kernels.moe_experts_prefill(ctx, run) : ctx.kernels.moe_experts(ctx, run);
  });
  return Status::ok();
}

}  // namespace tandem
