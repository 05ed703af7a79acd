// train/modules/kda_decay.h: sums over key channels of pairs of rows, decayed from one to the other, with gradients.
#pragma once

#include <ATen/core/Tensor.h>

namespace tandem::train {

// Sums of g inside blocks of s rows, [chunks, H, C/s, s, K]; grown with s. Small sums come from few terms, so that
// their error is relative to themselves and not to the sum over the chunk.
struct BlockDecay {
  at::Tensor prefix;  // over the rows of the block up to and including this one
  at::Tensor suffix;  // over the rows of the block behind this one
  at::Tensor total;   // [chunks, H, C/s, 1, K]
};

struct ChunkProducts {
  at::Tensor products;  // [2, chunks, H, C, C]: of q, of k, with k; zero above the diagonal
  BlockDecay decay;     // of whole chunks, [chunks, H, C, K]
};
// q, k, g [chunks, H, C, K]; the method is that of kda_chunk.h.
ChunkProducts decayed_products(const at::Tensor& q, const at::Tensor& k, const at::Tensor& g, bool bounded);

// The two halves of every pair of blocks: [.., blocks, s, K] → two of [.., blocks/2, s, K].
std::pair<at::Tensor, at::Tensor> halves(const at::Tensor& blocks);

}  // namespace tandem::train
