#include "train/modules/kda_decay.h"

#include <ATen/ATen.h>

namespace tandem::train {

std::pair<at::Tensor, at::Tensor> halves(const at::Tensor& blocks) {
  std::vector<int64_t> shape = blocks.sizes().vec();
  const auto axis = static_cast<int64_t>(shape.size()) - 3;
  shape[static_cast<size_t>(axis)] /= 2;
  shape.insert(shape.begin() + axis + 1, 2);
  const std::vector<at::Tensor> parts = blocks.reshape(shape).unbind(axis + 1);
  return {parts[0], parts[1]};
}

namespace {

constexpr int64_t kBoundedBlock = 16;  // rows over which a bounded gate decays by exp(80) at most

// [.., C, K] in blocks of `size` rows.
at::Tensor in_blocks(const at::Tensor& x, int64_t size) {
  std::vector<int64_t> shape = x.sizes().vec();
  const size_t rows = shape.size() - 2;
  const int64_t blocks = shape[rows] / size;
  shape[rows] = blocks;
  shape.insert(shape.begin() + static_cast<int64_t>(rows) + 1, size);
  return x.reshape(shape);
}

BlockDecay first_blocks(const at::Tensor& g, int64_t size) {
  const at::Tensor blocks = in_blocks(g, size);
  BlockDecay decay;
  decay.prefix = size == 1 ? blocks : blocks.cumsum(-2);
  decay.total = decay.prefix.narrow(-2, size - 1, 1);
  decay.suffix = decay.total - decay.prefix;
  return decay;
}

BlockDecay merge(const BlockDecay& decay) {
  const auto [first_total, second_total] = halves(decay.total);
  const auto [first_prefix, second_prefix] = halves(decay.prefix);
  const auto [first_suffix, second_suffix] = halves(decay.suffix);
  BlockDecay merged;
  merged.prefix = at::cat({first_prefix, second_prefix + first_total}, -2);
  merged.suffix = at::cat({first_suffix + second_total, second_suffix}, -2);
  merged.total = first_total + second_total;
  return merged;
}

// Σ_c x_i[c] k_j[c] exp(G_i − G_j) for the rows of each diagonal block; what lies above the diagonal is not used.
at::Tensor diagonal_products(const at::Tensor& rows, const at::Tensor& keys, const BlockDecay& decay, int64_t size) {
  if (size == 1) return (rows * keys).sum(-1, true);
  const at::Tensor from_middle = decay.prefix - decay.prefix.narrow(-2, size / 2, 1);
  return at::matmul(rows * from_middle.exp(), (keys * (-from_middle).exp()).transpose(-1, -2)).tril();
}

}  // namespace

ChunkProducts decayed_products(const at::Tensor& q, const at::Tensor& k, const at::Tensor& g, bool bounded) {
  const int64_t chunk = g.size(-2);
  int64_t size = bounded ? kBoundedBlock : 1;
  const at::Tensor query_and_key = at::stack({q, k});
  ChunkProducts result;
  result.decay = first_blocks(g, size);
  result.products = diagonal_products(in_blocks(query_and_key, size), in_blocks(k, size), result.decay, size);
  for (; size < chunk; size *= 2) {
    const at::Tensor rows = halves(in_blocks(query_and_key, size)).second;
    const at::Tensor keys = halves(in_blocks(k, size)).first;
    const at::Tensor row_decay = halves(result.decay.prefix).second.exp();
    const at::Tensor key_decay = halves(result.decay.suffix).first.exp();
    const at::Tensor below = at::matmul(rows * row_decay, (keys * key_decay).transpose(-1, -2));
    const auto [first, second] = halves(result.products);
    result.products = at::cat({at::cat({first, at::zeros_like(first)}, -1), at::cat({below, second}, -1)}, -2);
    result.decay = merge(result.decay);
  }
  result.products = result.products.squeeze(-3);
  result.decay.prefix = result.decay.prefix.squeeze(-3);
  result.decay.suffix = result.decay.suffix.squeeze(-3);
  result.decay.total = result.decay.total.squeeze(-3);
  return result;
}

}  // namespace tandem::train
