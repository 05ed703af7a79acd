// kernels/mla/mla.cpp: argument checks of mla_expanded and mla_absorbed; the work is the table's.
#include "kernels/mla/mla.h"

#include <cmath>

#include "kernels/kda/view_checks.h"
#include "kernels/kernel_table.h"

namespace tandem {
namespace {

Status check_latents(const char* op, size_t index, const MlaSegment& segment) {
  const LatentPages& latents = segment.latents;
  if (latents.length < segment.num_rows) {
    return Status::invalid(cat(op, ": segment ", index, " has ", segment.num_rows, " rows but only ", latents.length,
                               " cached tokens; the cache rows of its own tokens come first"));
  }
  if (latents.dtype != DType::kF32 && latents.dtype != DType::kBF16) {
    return Status::invalid(
        cat(op, ": latents of segment ", index, " must be F32 or BF16, got ", dtype_name(latents.dtype)));
  }
  if (latents.page_tokens < 1) {
    return Status::invalid(cat(op, ": segment ", index, " needs pages of at least 1 token, got ", latents.page_tokens));
  }
  const int64_t needed = (latents.length + latents.page_tokens - 1) / latents.page_tokens;
  if (static_cast<int64_t>(latents.pages.size()) < needed) {
    return Status::invalid(cat(op, ": segment ", index, " needs ", needed, " pages for ", latents.length,
                               " tokens, got ", latents.pages.size()));
  }
  for (int64_t page = 0; page < needed; ++page) {
    if (latents.pages[static_cast<size_t>(page)] == nullptr) {
      return Status::invalid(cat(op, ": page ", page, " of segment ", index, " has no memory"));
    }
  }
  return Status::ok();
}

Status check_weight(const char* op, const MlaArgs& args, int64_t heads) {
  const int64_t rows = heads * (args.qk_nope_head_dim + args.v_head_dim);
  if (args.kv_b.rows != rows || args.kv_b.cols != args.kv_lora_rank) {
    return Status::invalid(cat(op, ": kv_b must have shape [", rows, ", ", args.kv_lora_rank, "], got [",
                               args.kv_b.rows, ", ", args.kv_b.cols, "]"));
  }
  if (args.kv_b.format == WeightFormat::kMxfp4) {
    return Status::invalid(cat(op, ": kv_b must be BF16, F16 or F32, got MXFP4"));
  }
  if (args.kv_b.empty()) return Status::invalid(cat(op, ": kv_b has no memory"));
  return Status::ok();
}

Status check_mla(const char* op, const MlaArgs& args) {
  const int64_t rows = args.q.shape[0];
  const int64_t heads = args.q.shape[1];
  if (heads < 1 || args.kv_lora_rank < 1 || args.qk_nope_head_dim < 1 || args.v_head_dim < 1 ||
      args.qk_rope_head_dim < 0) {
    return Status::invalid(cat(op, ": heads, kv_lora_rank, nope and v must be at least 1 and rope at least 0, got ",
                               heads, ", ", args.kv_lora_rank, ", ", args.qk_nope_head_dim, ", ", args.v_head_dim, ", ",
                               args.qk_rope_head_dim));
  }
  TANDEM_RETURN_IF_ERROR(check_view(op, "q", args.q, {rows, heads, args.qk_nope_head_dim + args.qk_rope_head_dim}));
  TANDEM_RETURN_IF_ERROR(check_view(op, "out", args.out, {rows, heads, args.v_head_dim}));
  TANDEM_RETURN_IF_ERROR(check_weight(op, args, heads));
  if (!std::isfinite(args.scale)) return Status::invalid(cat(op, ": scale must be finite, got ", args.scale));
  for (size_t i = 0; i < args.segments.size(); ++i) {
    const MlaSegment& segment = args.segments[i];
    TANDEM_RETURN_IF_ERROR(check_segment(op, static_cast<int64_t>(i), segment.row_begin, segment.num_rows, rows));
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
