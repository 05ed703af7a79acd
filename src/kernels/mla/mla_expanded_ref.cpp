// kernels/mla/mla_expanded_ref.cpp: the expanded form of mla.h in plain loops.
#include "kernels/backend_entries.h"
#include "kernels/mla/mla_ref_common.h"

namespace tandem::ref {
namespace {

struct Scratch {
  float* weight;   // [nope + v, rank]
  float* latent;   // [rank + rope]
  float* keys;     // [length, nope + rope]
  float* values;   // [length, v]
  float* weights;  // [length] scores, then probabilities
};

// k_h(s) = [ W_UK c_s | kpe_s ],  v_h(s) = W_UV c_s
void expand(const MlaArgs& args, const LatentPages& latents, const Scratch& scratch) {
  const int64_t rank = args.kv_lora_rank;
  const int64_t nope = args.qk_nope_head_dim;
  const int64_t rope = args.qk_rope_head_dim;
  for (int64_t s = 0; s < latents.length; ++s) {
    read_latent(latents, s, rank + rope, scratch.latent);
    float* key = scratch.keys + s * (nope + rope);
    for (int64_t i = 0; i < nope; ++i) key[i] = dot(scratch.weight + i * rank, scratch.latent, rank);
    for (int64_t i = 0; i < rope; ++i) key[nope + i] = scratch.latent[rank + i];
    for (int64_t i = 0; i < args.v_head_dim; ++i) {
      scratch.values[s * args.v_head_dim + i] = dot(scratch.weight + (nope + i) * rank, scratch.latent, rank);
    }
  }
}

void attend(const MlaArgs& args, const MlaSegment& segment, int64_t h, const Scratch& scratch) {
  const int64_t qk = args.qk_nope_head_dim + args.qk_rope_head_dim;
  for (int64_t i = 0; i < segment.num_rows; ++i) {
    const int64_t t = segment.row_begin + i;
    const int64_t visible = segment.latents.length - segment.num_rows + i + 1;
    for (int64_t s = 0; s < visible; ++s) {
      scratch.weights[s] = args.scale * dot(&args.q(t, h, 0), scratch.keys + s * qk, qk);
    }
    softmax(scratch.weights, visible);
    for (int64_t j = 0; j < args.v_head_dim; ++j) {
      float o = 0.f;
      for (int64_t s = 0; s < visible; ++s) o += scratch.weights[s] * scratch.values[s * args.v_head_dim + j];
      args.out(t, h, j) = o;
    }
  }
}

}  // namespace

void mla_expanded(const ExecContext& ctx, const MlaArgs& args) {
  const int64_t rank = args.kv_lora_rank;
  const int64_t qk = args.qk_nope_head_dim + args.qk_rope_head_dim;
  for (const MlaSegment& segment : args.segments) {
    if (segment.num_rows == 0) continue;
    const ArenaScope scope(ctx.arena);
    const int64_t length = segment.latents.length;
    Scratch scratch{};
    scratch.weight = ctx.arena.alloc<float>((args.qk_nope_head_dim + args.v_head_dim) * rank).data();
    scratch.latent = ctx.arena.alloc<float>(rank + args.qk_rope_head_dim).data();
    scratch.keys = ctx.arena.alloc<float>(length * qk).data();
    scratch.values = ctx.arena.alloc<float>(length * args.v_head_dim).data();
    scratch.weights = ctx.arena.alloc<float>(length).data();
    for (int64_t h = 0; h < args.q.shape[1]; ++h) {
      read_head_weight(args, h, scratch.weight);
      expand(args, segment.latents, scratch);
      attend(args, segment, h, scratch);
    }
  }
}

}  // namespace tandem::ref
