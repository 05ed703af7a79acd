// kernels/kda/kda.cpp: argument checks of kda_recurrent and kda_chunked; the work is the table's.
#include "kernels/kda/kda.h"

#include <cmath>

#include "kernels/kernel_table.h"
#include "kernels/shape_check.h"

namespace tandem {
namespace {

Status check_kda(std::string_view op, const KdaArgs& args) {
  const int64_t rows = args.q.shape[0];
  const int64_t heads = args.q.shape[1];
  const int64_t key_dim = args.q.shape[2];
  const int64_t value_dim = args.v.shape[2];
  TANDEM_RETURN_IF_ERROR(check_view({op, "q"}, args.q, {rows, heads, key_dim}));
  TANDEM_RETURN_IF_ERROR(check_view({op, "k"}, args.k, {rows, heads, key_dim}));
  TANDEM_RETURN_IF_ERROR(check_view({op, "v"}, args.v, {rows, heads, value_dim}));
  TANDEM_RETURN_IF_ERROR(check_view({op, "g"}, args.g, {rows, heads, key_dim}));
  TANDEM_RETURN_IF_ERROR(check_view({op, "beta"}, args.beta, {rows, heads}));
  TANDEM_RETURN_IF_ERROR(check_view({op, "out"}, args.out, {rows, heads, value_dim}));
  if (heads < 1 || key_dim < 1 || value_dim < 1) {
    return unexpected({op, "q and v"}, "H, K and V of at least 1", cat(heads, ", ", key_dim, " and ", value_dim));
  }
  if (!std::isfinite(args.scale)) return unexpected({op, "scale"}, "a finite number", args.scale);
  for (size_t i = 0; i < args.segments.size(); ++i) {
    const KdaSegment& segment = args.segments[i];
    TANDEM_RETURN_IF_ERROR(check_segment({op, "segment", i}, segment.row_begin, segment.num_rows, rows));
    if (segment.num_rows > 0 && segment.state == nullptr) {
      return unexpected({op, "segment", i, "state"}, cat("memory for ", segment.num_rows, " rows"), "a null pointer");
    }
  }
  return Status::ok();
}

}  // namespace

Status kda_recurrent(const ExecContext& ctx, const KdaArgs& args) {
  TANDEM_RETURN_IF_ERROR(check_kda("kda_recurrent", args));
  if (args.q.shape[0] > 0 && !args.segments.empty()) ctx.kernels.kda_recurrent(ctx, args);
  return Status::ok();
}

Status kda_chunked(const ExecContext& ctx, const KdaArgs& args) {
  TANDEM_RETURN_IF_ERROR(check_kda("kda_chunked", args));
  if (args.q.shape[0] > 0 && !args.segments.empty()) ctx.kernels.kda_chunked(ctx, args);
  return Status::ok();
}

}  // namespace tandem
