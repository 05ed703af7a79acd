#include "kernels/attn_res/attn_res.h"

#include "base/cat.h"
#include "kernels/kernel_table.h"
#include "kernels/shape_check.h"

namespace tandem {

Status attn_res_mix(const ExecContext& ctx, const AttnResMixArgs& args) {
  if (args.sources.empty()) return Status::invalid("attn_res_mix: expected at least one source, found none");
  TANDEM_RETURN_IF_ERROR(check_rows("attn_res_mix: out", args.out));
  for (size_t i = 0; i < args.sources.size(); ++i) {
    const Status status = check_same_shape("", args.sources[i], args.out);
    if (!status.is_ok()) return Status::invalid(cat("attn_res_mix: source ", i, status.message()));
  }
  TANDEM_RETURN_IF_ERROR(check_vector("attn_res_mix: score_weight", args.score_weight, args.out.shape[1]));
  if (args.out.shape[0] > 0) ctx.kernels.attn_res_mix(ctx, args);
  return Status::ok();
}

}  // namespace tandem
