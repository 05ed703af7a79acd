#include "kernels/moe/experts.h"

#include "base/cat.h"
#include "kernels/kernel_table.h"
#include "kernels/shape_check.h"
#include "tensor/mxfp4.h"

namespace tandem {
namespace {

Status check_expert_matrix(std::string_view name, const WeightView& weight, int64_t rows, int64_t cols, size_t expert) {
  if (weight.rows != rows || weight.cols != cols) {
    return Status::invalid(cat("moe_experts: expert ", expert, " ", name, ": expected shape [", rows, ", ", cols,
                               "], found [", weight.rows, ", ", weight.cols, "]"));
  }
  if (Status status = check_weight("weight", weight); !status.is_ok()) {
    return Status::invalid(cat("moe_experts: expert ", expert, " ", name, ": ", status.message()));
  }
  return Status::ok();
}

}  // namespace

Status moe_experts(const ExecContext& ctx, const MoeExpertsArgs& args) {
  TANDEM_RETURN_IF_ERROR(check_rows("moe_experts: z", args.z));
  const int64_t T = args.z.shape[0];
  const int64_t Dl = args.z.shape[1];
  TANDEM_RETURN_IF_ERROR(check_shape("moe_experts: topk_ids", args.topk_ids, T, args.topk_ids.shape[1]));
  TANDEM_RETURN_IF_ERROR(check_shape("moe_experts: topk_weights", args.topk_weights, T, args.topk_ids.shape[1]));
  TANDEM_RETURN_IF_ERROR(check_same_shape("moe_experts: out", args.out, args.z));
  TANDEM_RETURN_IF_ERROR(check_gated_act_params("moe_experts", args.act));
  if (args.experts.empty()) return Status::invalid("moe_experts: expected at least one expert, found none");
  const int64_t I = args.experts[0].w1.rows;
  for (size_t e = 0; e < args.experts.size(); ++e) {
    TANDEM_RETURN_IF_ERROR(check_expert_matrix("w1", args.experts[e].w1, I, Dl, e));
    TANDEM_RETURN_IF_ERROR(check_expert_matrix("w3", args.experts[e].w3, I, Dl, e));
    TANDEM_RETURN_IF_ERROR(check_expert_matrix("w2", args.experts[e].w2, Dl, I, e));
  }
  if (args.expert_act == ExpertAct::kMxfp8 && (Dl % kMxGroup != 0 || I % kMxGroup != 0)) {
    return Status::invalid(cat("moe_experts: MXFP8 expects widths that are multiples of 32, found ", Dl, " and ", I));
  }
  const auto E = static_cast<int64_t>(args.experts.size());
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t j = 0; j < args.topk_ids.shape[1]; ++j) {
      const int32_t id = args.topk_ids(t, j);
      if (id < 0 || id >= E) {
        return Status::invalid(
            cat("moe_experts: token ", t, " slot ", j, ": expected an expert in [0, ", E, "), found ", id));
      }
    }
  }
  if (T > 0) ctx.kernels.moe_experts(ctx, args);
  return Status::ok();
}

}  // namespace tandem
