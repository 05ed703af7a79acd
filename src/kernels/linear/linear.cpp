#include "kernels/linear/linear.h"

#include "kernels/kernel_table.h"
#include "kernels/shape_check.h"

namespace tandem {

Status linear(const ExecContext& ctx, const LinearArgs& args) {
  TANDEM_RETURN_IF_ERROR(check_rows({"linear", "x"}, args.x));
  const int64_t T = args.x.shape[0];
  const int64_t in = args.x.shape[1];
  for (size_t i = 0; i < args.outputs.size(); ++i) {
    const LinearOutput& output = args.outputs[i];
    TANDEM_RETURN_IF_ERROR(check_weight({"linear", "output", i, "weight"}, output.weight, output.weight.rows, in));
    TANDEM_RETURN_IF_ERROR(check_view({"linear", "output", i, "y"}, output.y, {T, output.weight.rows}));
  }
  if (!are_row_ranges(args.prefill, T)) return unexpected({"linear", "prefill"}, "ascending ranges of rows", "others");
  if (T == 0 || args.outputs.empty()) return Status::ok();
  if (ctx.kernels.linear_prefill == nullptr || args.prefill.empty()) {
    ctx.kernels.linear(ctx, args);
    return Status::ok();
  }
  const ArenaScope scratch(ctx.arena);
  const std::span<LinearOutput> outputs = ctx.arena.alloc<LinearOutput>(static_cast<int64_t>(args.outputs.size()));
  for_each_run(args.prefill, T, [&](int64_t begin, int64_t end, bool is_prefill) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      outputs[i] = {args.outputs[i].weight, args.outputs[i].y.rows(begin, end - begin)};
    }
    const LinearArgs run = {.x = args.x.rows(begin, end - begin), .outputs = outputs};
    is_prefill ? ctx.kernels.linear_prefill(ctx, run) : ctx.kernels.linear(ctx, run);
  });
  return Status::ok();
}

}  // namespace tandem
