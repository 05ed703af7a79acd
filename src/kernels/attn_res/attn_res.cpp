#include "kernels/attn_res/attn_res.h"

#include "kernels/kernel_table.h"
#include "kernels/shape_check.h"

namespace tandem {

Status attn_res_mix(const ExecContext& ctx, const AttnResMixArgs& args) {
  if (args.sources.empty()) return unexpected({"attn_res_mix", "sources"}, "at least one source", "none");
  TANDEM_RETURN_IF_ERROR(check_rows({"attn_res_mix", "out"}, args.out));
  for (size_t i = 0; i < args.sources.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(check_same_shape({"attn_res_mix", "source", i}, args.sources[i], args.out));
  }
  TANDEM_RETURN_IF_ERROR(check_view({"attn_res_mix", "score_weight"}, args.score_weight, {args.out.shape[1]}));
  if (!(args.eps > 0.f)) return unexpected({"attn_res_mix", "eps"}, "a value > 0", args.eps);
  if (args.out.shape[0] > 0) ctx.kernels.attn_res_mix(ctx, args);
  return Status::ok();
}

}  // namespace tandem
