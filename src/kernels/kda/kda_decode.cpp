// kernels/kda/kda_decode.cpp: argument checks of kda_decode; the work is the table's.
#include "kernels/kda/kda_decode.h"

#include <cmath>

#include "kernels/kernel_table.h"
#include "kernels/shape_check.h"

namespace tandem {
namespace {

constexpr std::string_view kOp = "kda_decode";

Status check_numbers(const KdaDecodeArgs& args) {
  if (!std::isfinite(args.scale)) return unexpected({kOp, "scale"}, "a finite number", args.scale);
  if (!(args.l2_eps > 0.f)) return unexpected({kOp, "l2_eps"}, "a value > 0", args.l2_eps);
  if (!(args.norm_eps > 0.f)) return unexpected({kOp, "norm_eps"}, "a value > 0", args.norm_eps);
  if (args.lower_bound.has_value() && !(*args.lower_bound >= -5.f && *args.lower_bound < 0.f)) {
    return unexpected({kOp, "lower_bound"}, "a value in [-5, 0)", *args.lower_bound);
  }
  return Status::ok();
}

Status check_segments(const KdaDecodeArgs& args, int64_t rows, int64_t channels, int64_t width) {
  for (size_t i = 0; i < args.segments.size(); ++i) {
    const KdaDecodeSegment& segment = args.segments[i];
    TANDEM_RETURN_IF_ERROR(check_segment({kOp, "segment", i}, segment.row_begin, segment.num_rows, rows));
    if (segment.num_rows == 0) continue;
    if (segment.state == nullptr) {
      return unexpected({kOp, "segment", i, "state"}, cat("memory for ", segment.num_rows, " rows"), "a null pointer");
    }
    if (width == 1) continue;
    TANDEM_RETURN_IF_ERROR(check_view({kOp, "segment", i, "history"}, segment.history, {width - 1, channels}));
  }
  return Status::ok();
}

}  // namespace

Status kda_decode(const ExecContext& ctx, const KdaDecodeArgs& args) {
  const int64_t rows = args.q.shape[0];
  const int64_t keys = args.q.shape[1];
  const int64_t values = args.v.shape[1];
  const int64_t width = args.conv_weight.shape[1];
  if (args.heads < 1 || keys < 1 || values < 1 || keys % args.heads != 0 || values % args.heads != 0) {
    return unexpected({kOp, "heads"}, "at least one that divides the columns of q and v",
                      cat(args.heads, " for ", keys, " and ", values));
  }
  if (width < 1) return unexpected({kOp, "conv_weight"}, "a width of at least 1", width);
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "q"}, args.q, {rows, keys}));
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "k"}, args.k, {rows, keys}));
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "v"}, args.v, {rows, values}));
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "z"}, args.z, {rows, keys}));
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "beta"}, args.beta, {rows, args.heads}));
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "gate"}, args.gate, {rows, values}));
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "out"}, args.out, {rows, values}));
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "conv_weight"}, args.conv_weight, {2 * keys + values, width}));
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "a_log"}, args.a_log, {args.heads}));
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "dt_bias"}, args.dt_bias, {keys}));
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "norm_weight"}, args.norm_weight, {values / args.heads}));
  TANDEM_RETURN_IF_ERROR(check_numbers(args));
  TANDEM_RETURN_IF_ERROR(check_segments(args, rows, 2 * keys + values, width));
  if (rows > 0 && !args.segments.empty()) ctx.kernels.kda_decode(ctx, args);
  return Status::ok();
}

}  // namespace tandem
