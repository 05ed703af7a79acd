// kernels/mla/mla_absorbed_ref.cpp: the absorbed form of mla.h in plain loops.
#include "kernels/backend_entries.h"
#include "kernels/mla/mla_ref_common.h"

namespace tandem::ref {
namespace {

struct Scratch {
  float* weight;    // [nope + v, rank]
  float* latent;    // [rank + rope]
  float* query;     // [rank + rope]  [ q̃ | q[nope:] ]
  float* attended;  // [rank]  m
  float* weights;   // [length] scores, then probabilities
};

void attend(const MlaArgs& args, const LatentPages& latents, int64_t visible, int64_t t, int64_t h,
            const Scratch& scratch) {
  const int64_t rank = args.kv_lora_rank;
  const int64_t nope = args.qk_nope_head_dim;
  const int64_t rope = args.qk_rope_head_dim;
  for (int64_t c = 0; c < rank; ++c) {
    float sum = 0.f;
    for (int64_t i = 0; i < nope; ++i) sum += scratch.weight[i * rank + c] * args.q(t, h, i);
    scratch.query[c] = sum;
    scratch.attended[c] = 0.f;
  }
  for (int64_t i = 0; i < rope; ++i) scratch.query[rank + i] = args.q(t, h, nope + i);
  for (int64_t s = 0; s < visible; ++s) {
    read_latent(latents, s, rank + rope, scratch.latent);
    scratch.weights[s] = args.scale * dot(scratch.query, scratch.latent, rank + rope);
  }
  softmax(scratch.weights, visible);
  for (int64_t s = 0; s < visible; ++s) {
    read_latent(latents, s, rank + rope, scratch.latent);
    for (int64_t c = 0; c < rank; ++c) scratch.attended[c] += scratch.weights[s] * scratch.latent[c];
  }
  for (int64_t j = 0; j < args.v_head_dim; ++j) {
    args.out(t, h, j) = dot(scratch.weight + (nope + j) * rank, scratch.attended, rank);
  }
}

}  // namespace

void mla_absorbed(const ExecContext& ctx, const MlaArgs& args) {
  const int64_t rank = args.kv_lora_rank;
  const int64_t rope = args.qk_rope_head_dim;
  for (const MlaSegment& segment : args.segments) {
    if (segment.num_rows == 0) continue;
    const ArenaScope scope(ctx.arena);
    Scratch scratch{};
    scratch.weight = ctx.arena.alloc<float>((args.qk_nope_head_dim + args.v_head_dim) * rank).data();
    scratch.latent = ctx.arena.alloc<float>(rank + rope).data();
    scratch.query = ctx.arena.alloc<float>(rank + rope).data();
    scratch.attended = ctx.arena.alloc<float>(rank).data();
    scratch.weights = ctx.arena.alloc<float>(segment.latents.length).data();
    for (int64_t h = 0; h < args.q.shape[1]; ++h) {
      read_head_weight(args, h, scratch.weight);
      for (int64_t i = 0; i < segment.num_rows; ++i) {
        const int64_t visible = segment.latents.length - segment.num_rows + i + 1;
        attend(args, segment.latents, visible, segment.row_begin + i, h, scratch);
      }
    }
  }
}

}  // namespace tandem::ref
