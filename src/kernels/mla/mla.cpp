// kernels/mla/mla.cpp: argument checks of mla_expanded and mla_absorbed; the work is the table's.
#include "kernels/mla/mla.h"

#include <cmath>

#include "kernels/kernel_table.h"
#include "kernels/shape_check.h"

namespace tandem {
namespace {

Status check_latents(std::string_view op, size_t index, const MlaSegment& segment) {
  const LatentPages& latents = segment.latents;
  if (latents.length < segment.num_rows) {
    return unexpected({op, "segment", index, "latents"},
                      cat("a length of at least ", segment.num_rows, ", the segment's own cached rows included"),
                      latents.length);
  }
  if (latents.dtype != DType::kF32 && latents.dtype != DType::kBF16) {
    return unexpected({op, "segment", index, "latents"}, "F32 or BF16", dtype_name(latents.dtype));
  }
  if (latents.page_tokens < 1) {
    return unexpected({op, "segment", index, "latents"}, "pages of at least 1 token", latents.page_tokens);
  }
  const int64_t needed = (latents.length + latents.page_tokens - 1) / latents.page_tokens;
  if (static_cast<int64_t>(latents.pages.size()) < needed) {
    return unexpected({op, "segment", index, "latents"}, cat(needed, " pages for ", latents.length, " tokens"),
                      latents.pages.size());
  }
  for (int64_t page = 0; page < needed; ++page) {
    if (latents.pages[static_cast<size_t>(page)] == nullptr) {
      return unexpected({op, "segment", index, "latents"}, cat("memory behind page ", page), "a null pointer");
    }
  }
  return Status::ok();
}

Status check_mla(std::string_view op, const MlaArgs& args) {
  const int64_t rows = args.q.shape[0];
  const int64_t heads = args.q.shape[1];
  if (heads < 1 || args.kv_lora_rank < 1 || args.qk_nope_head_dim < 1 || args.v_head_dim < 1 ||
      args.qk_rope_head_dim < 0) {
    return unexpected({op, "q and widths"}, "heads, kv_lora_rank, nope and v of at least 1 and rope of at least 0",
                      cat(heads, ", ", args.kv_lora_rank, ", ", args.qk_nope_head_dim, ", ", args.v_head_dim, " and ",
                          args.qk_rope_head_dim));
  }
  TANDEM_RETURN_IF_ERROR(check_view({op, "q"}, args.q, {rows, heads, args.qk_nope_head_dim + args.qk_rope_head_dim}));
  TANDEM_RETURN_IF_ERROR(check_view({op, "out"}, args.out, {rows, heads, args.v_head_dim}));
  if (args.kv_b.format == WeightFormat::kMxfp4) return unexpected({op, "kv_b"}, "BF16, F16 or F32", "MXFP4");
  if (args.kv_b.format == WeightFormat::kInt8) return unexpected({op, "kv_b"}, "BF16, F16 or F32", "int8");
  TANDEM_RETURN_IF_ERROR(
      check_weight({op, "kv_b"}, args.kv_b, heads * (args.qk_nope_head_dim + args.v_head_dim), args.kv_lora_rank));
  if (!std::isfinite(args.scale)) return unexpected({op, "scale"}, "a finite number", args.scale);
  for (size_t i = 0; i < args.segments.size(); ++i) {
    const MlaSegment& segment = args.segments[i];
    TANDEM_RETURN_IF_ERROR(check_segment({op, "segment", i}, segment.row_begin, segment.num_rows, rows));
    if (segment.num_rows > 0) TANDEM_RETURN_IF_ERROR(check_latents(op, i, segment));
  }
  return Status::ok();
}

}  // namespace

Status mla_expanded(const ExecContext& ctx, const MlaArgs& args) {
  TANDEM_RETURN_IF_ERROR(check_mla("mla_expanded", args));
  if (args.q.shape[0] > 0 && !args.segments.empty()) ctx.kernels.mla_expanded(ctx, args);
  return Status::ok();
}

Status mla_absorbed(const ExecContext& ctx, const MlaArgs& args) {
  TANDEM_RETURN_IF_ERROR(check_mla("mla_absorbed", args));
  if (args.q.shape[0] > 0 && !args.segments.empty()) ctx.kernels.mla_absorbed(ctx, args);
  return Status::ok();
}

}  // namespace tandem
