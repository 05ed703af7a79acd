// kernels/kda/kda_chunked_ref.cpp: the chunk equations of kda.h in plain loops. Decays are running products of factors
// in (0, 1]; the triangular system is solved by forward substitution.
#include <algorithm>
#include <cmath>

#include "kernels/backend_entries.h"
#include "kernels/kda/kda_ref_step.h"

namespace tandem::ref {
namespace {

struct Scratch {
  float* u;       // [kKdaChunk, V]  R, then U by substitution
  float* lower;   // [kKdaChunk, kKdaChunk]  L_ij, j < i
  float* scores;  // [kKdaChunk, kKdaChunk]  M_ij, j ≤ i
  float* decay;   // [kKdaChunk, K]  exp(g_m)
};

// Π_{m=begin..end−1} exp(g_m)[c]
float decay_product(const Scratch& s, int64_t K, int64_t begin, int64_t end, int64_t c) {
  float product = 1.f;
  for (int64_t m = begin; m < end; ++m) product *= s.decay[m * K + c];
  return product;
}

void triangles(const KdaArgs& args, int64_t t0, int64_t rows, int64_t h, const Scratch& s) {
  const int64_t K = args.q.shape[2];
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      float l = 0.f;
      float m = 0.f;
      for (int64_t c = 0; c < K; ++c) {
        const float k_decayed = args.k(t0 + j, h, c) * decay_product(s, K, j + 1, i + 1, c);
        l += args.k(t0 + i, h, c) * k_decayed;
        m += args.q(t0 + i, h, c) * k_decayed;
      }
      s.lower[i * kKdaChunk + j] = args.beta(t0 + i, h) * l;
      s.scores[i * kKdaChunk + j] = m;
    }
  }
}

void chunk(const KdaArgs& args, int64_t t0, int64_t rows, int64_t h, float* S, const Scratch& s) {
  const int64_t K = args.q.shape[2];
  const int64_t V = args.v.shape[2];
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = 0; c < K; ++c) s.decay[i * K + c] = std::exp(args.g(t0 + i, h, c));
  }
  triangles(args, t0, rows, h, s);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t v = 0; v < V; ++v) {
      float read = 0.f;  // (Γ_i ⊙ k_i)ᵀ S0
      float o = 0.f;     // (Γ_i ⊙ q_i)ᵀ S0
      for (int64_t c = 0; c < K; ++c) {
        const float gamma = decay_product(s, K, 0, i + 1, c);
        read += gamma * args.k(t0 + i, h, c) * S[c * V + v];
        o += gamma * args.q(t0 + i, h, c) * S[c * V + v];
      }
      float u = args.beta(t0 + i, h) * (args.v(t0 + i, h, v) - read);
      for (int64_t j = 0; j < i; ++j) u -= s.lower[i * kKdaChunk + j] * s.u[j * V + v];
      s.u[i * V + v] = u;
      for (int64_t j = 0; j <= i; ++j) o += s.scores[i * kKdaChunk + j] * s.u[j * V + v];
      args.out(t0 + i, h, v) = args.scale * o;
    }
  }
  for (int64_t c = 0; c < K; ++c) {
    for (int64_t v = 0; v < V; ++v) {
      float updated = decay_product(s, K, 0, rows, c) * S[c * V + v];
      for (int64_t i = 0; i < rows; ++i) {
        updated += decay_product(s, K, i + 1, rows, c) * args.k(t0 + i, h, c) * s.u[i * V + v];
      }
      S[c * V + v] = updated;
    }
  }
}

}  // namespace

void kda_chunked(const ExecContext& ctx, const KdaArgs& args) {
  const int64_t K = args.q.shape[2];
  const int64_t V = args.v.shape[2];
  const ArenaScope scope(ctx.arena);
  const Scratch scratch{
      ctx.arena.alloc<float>(kKdaChunk * V).data(), ctx.arena.alloc<float>(kKdaChunk * kKdaChunk).data(),
      ctx.arena.alloc<float>(kKdaChunk * kKdaChunk).data(), ctx.arena.alloc<float>(kKdaChunk * K).data()};
  for (const KdaSegment& segment : args.segments) {
    for (int64_t h = 0; h < args.q.shape[1]; ++h) {
      float* S = segment.state + h * K * V;
      for (int64_t done = 0; done < segment.num_rows; done += kKdaChunk) {
        const int64_t rows = std::min(kKdaChunk, segment.num_rows - done);
        if (rows == 1) {
          kda_step(args, segment.row_begin + done, h, S);
        } else {
          chunk(args, segment.row_begin + done, rows, h, S, scratch);
        }
      }
    }
  }
}

}  // namespace tandem::ref
