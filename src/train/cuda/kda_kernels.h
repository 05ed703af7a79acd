// train/cuda/kda_kernels.h: the parts of chunk-parallel KDA that are no batched matrix product. No torch and no CUDA
// header in here. Notation, and the products between these parts: train/modules/kda_chunk.h.
//
//   Chunks of kKdaChunk rows; heads of kdim 64 or 128 channels for keys and values alike. All sums are float. Any
//   gate: every exponential that is formed is of a number ≤ 0.
//   Errors, threading: as train/cuda/kernels.h.
#pragma once

#include "train/cuda/kernels.h"

namespace tandem::train::cuda {

inline constexpr int kKdaChunk = 64;
inline bool kda_takes(int64_t chunk_size, int64_t key_dim, int64_t value_dim) {
  return chunk_size == kKdaChunk && key_dim == value_dim && (key_dim == 64 || key_dim == 128);
}

// Rows of the batch, chunk by chunk.
struct KdaRows {
  const void* q = nullptr;  // [rows, heads, dim], of `type`; also k and v
  const void* k = nullptr;
  const void* v = nullptr;
  const float* g = nullptr;             // [rows, heads, dim]
  const float* beta = nullptr;          // [rows, heads]
  const int64_t* chunk_rows = nullptr;  // [chunks · kKdaChunk]: row, or `rows` where padded: zeros
  int64_t rows = 0;
  int64_t chunks = 0;
  int heads = 0;
  int dim = 0;
  float scale = 1.f;  // of q
  Element type = Element::kFloat;
};

// All [chunks, heads, …], C = kKdaChunk.
struct KdaTerms {
  float* query = nullptr;       // [C, dim] s exp(G) q
  float* key = nullptr;         // [C, dim] exp(G) k
  float* key_to_end = nullptr;  // [C, dim] exp(G_C − G) k
  float* value = nullptr;       // [C, dim] v
  float* attention = nullptr;   // [C, C] s M, zero above the diagonal
  float* solve = nullptr;       // [C, C] (I + L)⁻¹ Diag(β)
  float* decay = nullptr;       // [dim] exp(G_C)
};
int kda_prepare(const KdaRows& rows, const KdaTerms& terms, Stream stream);

// Gradients of KdaTerms, `pair` that of P_ij = Σ_c k_i k_j exp(G_i − G_j), j < i; what lies above a diagonal is not
// read.
struct KdaTermGradients {
  const float* query = nullptr;
  const float* key = nullptr;
  const float* key_to_end = nullptr;
  const float* attention = nullptr;
  const float* pair = nullptr;
  const float* decay = nullptr;
  void* q = nullptr;  // [rows, heads, dim], of `type`
  void* k = nullptr;
  float* g = nullptr;
};
int kda_prepare_backward(const KdaRows& rows, const KdaTermGradients& gradients, Stream stream);

// Step i works on chunks step_begin[i] … step_begin[i+1], one for each of the first documents.
struct KdaScanArgs {
  const float* weight = nullptr;         // forward: w; reverse: exp(G_C − G) k     [chunks, heads, C, dim]
  const float* update_weight = nullptr;  // forward: exp(G_C − G) k; reverse: w     [chunks, heads, C, dim]
  const float* decay = nullptr;          // [chunks, heads, dim]
  const float* added = nullptr;  // reverse: what a chunk's reads add to the gradient of its state, [.., dim, dim]
  float* rows = nullptr;         // forward: u → U; reverse: dU without the state's part → dU, [.., C, dim]
  float* states = nullptr;       // [chunks, heads, dim, dim] forward: before; reverse: gradient behind
  const float* first = nullptr;  // [documents, heads, dim, dim] by rank: where the scan begins
  float* last = nullptr;         // likewise: where it ends
  const int64_t* step_begin = nullptr;  // [steps + 1]
  int64_t documents = 0;
  int steps = 0;
  int heads = 0;
  int dim = 0;
};
// U = u − w S, S' = Diag(decay) S + keᵀ U.
int kda_scan(const KdaScanArgs& args, Stream stream);
// dU += ke dS', dS = Diag(decay) dS' + added − wᵀ dU, from the last step to the first.
int kda_scan_reverse(const KdaScanArgs& args, Stream stream);

}  // namespace tandem::train::cuda
