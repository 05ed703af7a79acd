#include "kernels/backend_entries.h"
#include "tensor/mxfp4.h"

namespace tandem::ref {
namespace {

// y[o] = Σ_c W[o][c] x[c]
void matvec(const WeightView& weight, std::span<const float> x, std::span<float> row, std::span<float> y) {
  for (int64_t o = 0; o < weight.rows; ++o) {
    weight_row_to_f32(weight, o, row);
    float sum = 0.f;
    for (size_t c = 0; c < x.size(); ++c) sum += row[c] * x[c];
    y[o] = sum;
  }
}

// The slot of token t that comes i-th in ascending order of expert id, equal ids in slot order.
int64_t nth_slot_by_expert(const MatrixView<const int32_t>& ids, int64_t t, int64_t i) {
  for (int64_t j = 0; j < ids.shape[1]; ++j) {
    int64_t before = 0;
    for (int64_t other = 0; other < ids.shape[1]; ++other) {
      before += ids(t, other) < ids(t, j) || (ids(t, other) == ids(t, j) && other < j);
    }
    if (before == i) return j;
  }
  return 0;  // not reached: the order is total
}

}  // namespace

void moe_experts(const ExecContext& ctx, const MoeExpertsArgs& a) {
  const int64_t Dl = a.z.shape[1];
  const int64_t I = a.experts[0].w1.rows;
  const int64_t k = a.topk_ids.shape[1];
  const ArenaScope scope(ctx.arena);
  const std::span<float> z = ctx.arena.alloc<float>(Dl);
  const std::span<float> gate = ctx.arena.alloc<float>(I);
  const std::span<float> up = ctx.arena.alloc<float>(I);
  const std::span<float> down = ctx.arena.alloc<float>(Dl);
  const std::span<float> row = ctx.arena.alloc<float>(Dl > I ? Dl : I);
  for (int64_t t = 0; t < a.z.shape[0]; ++t) {
    for (int64_t d = 0; d < Dl; ++d) {
      z[d] = a.z(t, d);
      if (!a.add_to_out) a.out(t, d) = 0.f;
    }
    if (a.expert_act == ExpertAct::kMxfp8) mxfp8_round(z);
    for (int64_t i = 0; i < k; ++i) {
      const int64_t j = nth_slot_by_expert(a.topk_ids, t, i);
      if (a.topk_ids(t, j) < a.expert_begin || a.topk_ids(t, j) >= a.expert_end) continue;
      const ExpertWeights& expert = a.experts[a.topk_ids(t, j)];
      matvec(expert.w1, z, row.first(Dl), gate);
      matvec(expert.w3, z, row.first(Dl), up);
      const auto hidden = MatrixView<float>::contiguous(gate.data(), {1, I});
      ref::gated_act(ctx, {hidden, MatrixView<float>::contiguous(up.data(), {1, I}), a.act, hidden});
      if (a.expert_act == ExpertAct::kMxfp8) mxfp8_round(gate);
      matvec(expert.w2, gate, row.first(I), down);
      for (int64_t d = 0; d < Dl; ++d) a.out(t, d) += a.topk_weights(t, j) * down[d];
    }
  }
}

}  // namespace tandem::ref
