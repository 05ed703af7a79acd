#include "train/modules/kda.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "train/modules/functional.h"

namespace tandem::train {
namespace {

constexpr double kL2NormEps = 1e-6;    // added to the sum of squares
constexpr int64_t kBoundedBlock = 16;  // rows over which a bounded gate decays by exp(80) at most

// Sums of g inside blocks of s rows, [chunks, H, C/s, s, K]; grown with s. Small sums come from few terms, so that
// their error is relative to themselves and not to the sum over the chunk.
struct BlockDecay {
  at::Tensor prefix;  // over the rows of the block up to and including this one
  at::Tensor suffix;  // over the rows of the block behind this one
  at::Tensor total;   // [chunks, H, C/s, 1, K]
};

// The two halves of every pair of blocks: [.., blocks, s, K] → two of [.., blocks/2, s, K].
std::pair<at::Tensor, at::Tensor> halves(const at::Tensor& blocks) {
  std::vector<int64_t> shape = blocks.sizes().vec();
  const auto axis = static_cast<int64_t>(shape.size()) - 3;
  shape[static_cast<size_t>(axis)] /= 2;
  shape.insert(shape.begin() + axis + 1, 2);
  const std::vector<at::Tensor> parts = blocks.reshape(shape).unbind(axis + 1);
  return {parts[0], parts[1]};
}

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

struct ChunkProducts {
  at::Tensor products;  // [2, chunks, H, C, C]: of q, of k, with k; zero above the diagonal
  BlockDecay decay;     // of whole chunks: blocks of C rows
};

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

// What the state recurrence of one chunk needs, [chunks, H, …].
struct ChunkTerms {
  at::Tensor value;       // u [C, V]
  at::Tensor key;         // w [C, K]
  at::Tensor key_to_end;  // exp(G_C − G) k, transposed: [K, C]
  at::Tensor decay;       // exp(G_C) [K, 1]
};

struct ScanResult {
  at::Tensor state_before;  // [chunks, H, K, V]
  at::Tensor update;        // U [chunks, H, C, V]
  at::Tensor final_state;   // [N, H, K, V] in falling order of chunk count
};

// The loop over chunk numbers. Split and concatenate once: slicing a tensor at each step would make the backward pass
// add up as many tensors of full size.
ScanResult scan(const ChunkTerms& terms, at::Tensor state, const std::vector<int64_t>& active) {
  const std::vector<at::Tensor> value = terms.value.split_with_sizes(active);
  const std::vector<at::Tensor> key = terms.key.split_with_sizes(active);
  const std::vector<at::Tensor> key_to_end = terms.key_to_end.split_with_sizes(active);
  const std::vector<at::Tensor> decay = terms.decay.split_with_sizes(active);
  std::vector<at::Tensor> before, update, finished;
  for (size_t step = 0; step < active.size(); ++step) {
    const int64_t ending = state.size(0) - active[step];
    if (ending > 0) {
      finished.push_back(state.narrow(0, active[step], ending));
      state = state.narrow(0, 0, active[step]);
    }
    before.push_back(state);
    update.push_back(value[step] - at::matmul(key[step], state));
    state = decay[step] * state + at::matmul(key_to_end[step], update.back());
  }
  finished.push_back(state);
  std::reverse(finished.begin(), finished.end());
  return {at::cat(before), at::cat(update), at::cat(finished)};
}

at::Tensor chunk_of(const at::Tensor& x, const SequenceLayout& layout) {  // [T, H, X] → [chunks, H, C, X]
  const at::Tensor rows = gather_padded(x, layout.chunk_rows);
  return rows.reshape({-1, layout.chunk_size, x.size(1), x.size(2)}).transpose(1, 2).contiguous();
}

}  // namespace

at::Tensor short_conv(const at::Tensor& x, const at::Tensor& weight, const SequenceLayout& layout) {
  const int64_t width = weight.size(-1);
  const at::Tensor wide = widen(x);
  const at::Tensor taps = weight.reshape({-1, width}).to(wide.scalar_type());
  at::Tensor sum = wide * taps.select(1, width - 1);
  for (int64_t back = 1; back < std::min(width, x.size(0)); ++back) {
    const at::Tensor earlier = at::constant_pad_nd(wide.narrow(0, 0, x.size(0) - back), {0, 0, back, 0});
    const at::Tensor inside = (layout.position >= back).to(wide.scalar_type()).unsqueeze(1);
    sum = sum + earlier * inside * taps.select(1, width - 1 - back);
  }
  return at::silu(sum).to(x.scalar_type());
}

at::Tensor kda_gate(const at::Tensor& z, const at::Tensor& a_log, const at::Tensor& dt_bias,
                    std::optional<double> lower_bound) {
  const at::Tensor rate = widen(a_log).exp().unsqueeze(-1);
  const at::Tensor input = widen(z) + widen(dt_bias).reshape({z.size(1), z.size(2)});
  if (lower_bound) return *lower_bound * (rate * input).sigmoid();
  // max(z, 0) + log1p(exp(−|z|)): at::softplus turns linear above its threshold, which a gradient check can see.
  return -rate * (input.clamp_min(0) + (-input.abs()).exp().log1p());
}

KdaOutputs kda_chunked(const KdaInputs& inputs, const SequenceLayout& layout) {
  const at::ScalarType type = inputs.g.scalar_type();
  const int64_t heads = inputs.q.size(1), key_dim = inputs.q.size(2), value_dim = inputs.v.size(2);
  at::Tensor state =
      inputs.initial_state.defined()
          ? inputs.initial_state.to(type).index_select(0, layout.document_of_rank)
          : at::zeros({layout.num_documents, heads, key_dim, value_dim}, inputs.g.options().requires_grad(false));
  if (layout.num_tokens == 0) {
    return {at::zeros({0, heads, value_dim}, state.options()), state.index_select(0, layout.rank_of_document)};
  }
  const at::Tensor q = chunk_of(inputs.q.to(type), layout) * inputs.scale;
  const at::Tensor k = chunk_of(inputs.k.to(type), layout);
  const at::Tensor v = chunk_of(inputs.v.to(type), layout);
  const at::Tensor beta = chunk_of(inputs.beta.to(type).unsqueeze(-1), layout);
  const ChunkProducts pairs = decayed_products(q, k, chunk_of(inputs.g, layout), inputs.bounded);
  const at::Tensor decay_here = pairs.decay.prefix.exp();

  const at::Tensor right = at::cat({v, k * decay_here}, -1) * beta;
  const at::Tensor solved = at::linalg_solve_triangular(pairs.products[1] * beta, right, /*upper=*/false,
                                                        /*left=*/true, /*unitriangular=*/true);
  ChunkTerms terms;
  terms.value = solved.narrow(-1, 0, value_dim);
  terms.key = solved.narrow(-1, value_dim, key_dim);
  terms.key_to_end = (k * pairs.decay.suffix.exp()).transpose(-1, -2);
  terms.decay = pairs.decay.total.exp().transpose(-1, -2);
  const ScanResult states = scan(terms, state, layout.active_documents);

  const at::Tensor out = at::matmul(q * decay_here, states.state_before) + at::matmul(pairs.products[0], states.update);
  return {out.transpose(1, 2).reshape({-1, heads, value_dim}).index_select(0, layout.row_in_chunks),
          states.final_state.index_select(0, layout.rank_of_document)};
}

at::Tensor kda_layer(const ModelConfig& config, const LayerParameters& weights, const at::Tensor& x,
                     const SequenceLayout& layout) {
  using Role = TensorRole;
  const auto heads = [&](const at::Tensor& rows) {
    return rows.reshape({x.size(0), config.kda_num_heads, config.kda_head_dim});
  };
  const auto stream = [&](Role proj, Role conv) {
    return heads(short_conv(project(x, weights[proj]), weights[conv], layout));
  };
  KdaInputs inputs;
  inputs.q = l2_norm(stream(Role::kKdaQProj, Role::kKdaQConv), kL2NormEps);
  inputs.k = l2_norm(stream(Role::kKdaKProj, Role::kKdaKConv), kL2NormEps);
  inputs.v = stream(Role::kKdaVProj, Role::kKdaVConv);
  inputs.g = kda_gate(heads(project(project(x, weights[Role::kKdaFAProj]), weights[Role::kKdaFBProj])),
                      weights[Role::kKdaALog], weights[Role::kKdaDtBias], config.gate_lower_bound);
  inputs.beta = widen(project(x, weights[Role::kKdaBProj])).sigmoid();
  inputs.scale = 1.0 / std::sqrt(static_cast<double>(config.kda_head_dim));
  inputs.bounded = config.gate_lower_bound.has_value();
  const at::Tensor out = kda_chunked(inputs, layout).out.to(x.scalar_type());

  const at::Tensor gate = config.use_full_rank_gate
                              ? project(x, weights[Role::kKdaGProj])
                              : project(project(x, weights[Role::kKdaGAProj]), weights[Role::kKdaGBProj]);
  const at::Tensor gated = rms_norm_gated(out, heads(gate), weights[Role::kKdaONorm], config.rms_norm_eps);
  return project(gated.reshape({x.size(0), config.kda_projection_size()}), weights[Role::kKdaOProj]);
}

}  // namespace tandem::train
