// kernels/kda/short_conv.cpp: argument checks of short_conv; the work is the table's.
#include "kernels/kda/short_conv.h"

#include "kernels/kernel_table.h"
#include "kernels/shape_check.h"

namespace tandem {

Status short_conv(const ExecContext& ctx, const ShortConvArgs& args) {
  constexpr std::string_view kOp = "short_conv";
  const int64_t num_rows = args.x.shape[0];
  const int64_t channels = args.x.shape[1];
  const int64_t width = args.weight.shape[1];
  if (width < 1) return unexpected({kOp, "weight"}, "a width of at least 1", width);
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "x"}, args.x, {num_rows, channels}));
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "out"}, args.out, {num_rows, channels}));
  TANDEM_RETURN_IF_ERROR(check_view({kOp, "weight"}, args.weight, {channels, width}));
  for (size_t i = 0; i < args.segments.size(); ++i) {
    const ShortConvSegment& segment = args.segments[i];
    TANDEM_RETURN_IF_ERROR(check_segment({kOp, "segment", i}, segment.row_begin, segment.num_rows, num_rows));
    if (width == 1 || segment.num_rows == 0) continue;
    TANDEM_RETURN_IF_ERROR(check_view({kOp, "segment", i, "history"}, segment.history, {width - 1, channels}));
  }
  if (num_rows == 0 || channels == 0 || args.segments.empty()) return Status::ok();
  ctx.kernels.short_conv(ctx, args);
  return Status::ok();
}

}  // namespace tandem
