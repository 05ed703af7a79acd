#include "train/modules/kda_chunk.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "train/modules/kda_decay.h"
#include "train/modules/kernel_calls.h"

namespace tandem::train {
namespace {

using kernels::KdaRows;
using kernels::KdaTerms;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kGroupRows = 1 << 17;  // rows times heads whose products exist at one time in the backward pass

// TF32 for products of floats on CUDA, while it lives. A setting of the process, so it is put back.
class ProductPrecision {
 public:
  explicit ProductPrecision(bool tf32) : changed_(tf32 && !at::globalContext().allowTF32CuBLAS()) {
    if (changed_) at::globalContext().setAllowTF32CuBLAS(true);
  }
  ~ProductPrecision() {
    if (changed_) at::globalContext().setAllowTF32CuBLAS(false);
  }
  ProductPrecision(const ProductPrecision&) = delete;
  ProductPrecision& operator=(const ProductPrecision&) = delete;

 private:
  bool changed_;
};

bool multiplies_in_tf32(const KdaRows& rows) {
  return kKdaTf32 && rows.q.is_cuda() && rows.q.scalar_type() == at::kBFloat16;
}

at::Tensor chunk_of(const at::Tensor& x, const SequenceLayout& layout) {  // [T, H, X] → [chunks, H, C, X]
  const at::Tensor rows = gather_padded(x, layout.chunk_rows);
  return rows.reshape({-1, layout.chunk_size, x.size(1), x.size(2)}).transpose(1, 2).contiguous();
}

at::Tensor rows_of(const at::Tensor& chunks, const SequenceLayout& layout) {  // the inverse
  return gather_padded(chunks.transpose(1, 2).reshape({-1, chunks.size(1), chunks.size(3)}), layout.row_in_chunks);
}

// The inputs in chunks, and what decays make of them: differentiable.
struct DecayedTerms {
  at::Tensor query, key, key_to_end, attention, pair, decay;
};

DecayedTerms decayed_terms(const at::Tensor& q, const at::Tensor& k, const at::Tensor& g, double scale, bool bounded) {
  const ChunkProducts pairs = decayed_products(q, k, g, bounded);
  const at::Tensor here = pairs.decay.prefix.exp();
  DecayedTerms terms;
  terms.query = scale * q * here;
  terms.key = k * here;
  terms.key_to_end = k * pairs.decay.suffix.exp();
  terms.attention = scale * pairs.products[0];
  terms.pair = pairs.products[1].tril(-1);
  terms.decay = pairs.decay.total.exp().transpose(-1, -2);
  return terms;
}

KdaTerms prepare(const KdaRows& rows, const SequenceLayout& layout, bool bounded) {
  if (kernels::kda_takes(rows, layout.chunk_size)) return kernels::kda_prepare(rows, layout);
  const at::ScalarType type = rows.g.scalar_type();
  const DecayedTerms terms = decayed_terms(chunk_of(rows.q.to(type), layout), chunk_of(rows.k.to(type), layout),
                                           chunk_of(rows.g, layout), rows.scale, bounded);
  const at::Tensor beta = chunk_of(rows.beta.to(type).unsqueeze(-1), layout);
  KdaTerms all;
  all.query = terms.query;
  all.key = terms.key;
  all.key_to_end = terms.key_to_end;
  all.attention = terms.attention;
  all.decay = terms.decay;
  all.value = chunk_of(rows.v.to(type), layout);
  all.solve = unit_lower_inverse(terms.pair * beta) * beta.transpose(-1, -2);
  return all;
}

kernels::KdaRowGradients prepare_backward(const KdaRows& rows, const SequenceLayout& layout, bool bounded,
                                          const kernels::KdaTermGradients& gradients) {
  if (kernels::kda_takes(rows, layout.chunk_size)) return kernels::kda_prepare_backward(rows, layout, gradients);
  const at::ScalarType type = rows.g.scalar_type();
  const at::Tensor q = chunk_of(rows.q.to(type), layout), k = chunk_of(rows.k.to(type), layout);
  const at::Tensor g = chunk_of(rows.g, layout);
  variable_list parts[3];
  const int64_t group = std::max<int64_t>(1, kGroupRows / (q.size(1) * q.size(2)));
  for (int64_t begin = 0; begin < q.size(0); begin += group) {
    const int64_t count = std::min(group, q.size(0) - begin);
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, count); };
    const variable_list leaves = {part(q).detach().set_requires_grad(true), part(k).detach().set_requires_grad(true),
                                  part(g).detach().set_requires_grad(true)};
    const c10::AutoGradMode with_gradient(true);
    const DecayedTerms terms = decayed_terms(leaves[0], leaves[1], leaves[2], rows.scale, bounded);
    const variable_list found = torch::autograd::grad(
        {terms.query, terms.key, terms.key_to_end, terms.attention, terms.pair, terms.decay}, leaves,
        {part(gradients.query), part(gradients.key), part(gradients.key_to_end), part(gradients.attention),
         part(gradients.pair), part(gradients.decay)});
    for (size_t i = 0; i < 3; ++i) parts[i].push_back(found[i]);
  }
  return {rows_of(at::cat(parts[0]), layout).to(rows.q.scalar_type()),
          rows_of(at::cat(parts[1]), layout).to(rows.k.scalar_type()), rows_of(at::cat(parts[2]), layout)};
}

struct Scan {
  at::Tensor states;  // [chunks, H, K, V] before each chunk; in reverse the gradient behind each chunk
  at::Tensor last;    // [N, H, K, V] by rank: where the scan ended
};

// rows: u → U.
Scan scan(const KdaTerms& terms, const at::Tensor& weight, const at::Tensor& rows, const at::Tensor& first,
          const SequenceLayout& layout, bool kernel) {
  if (kernel) {
    const auto [states, last] = kernels::kda_scan(terms, weight, rows, first, layout);
    return {states, last};
  }
  Scan result{at::empty({rows.size(0), rows.size(1), first.size(2), first.size(3)}, first.options()), first.clone()};
  int64_t begin = 0;
  for (const int64_t active : layout.active_documents) {
    const auto of_step = [&](const at::Tensor& x) { return x.narrow(0, begin, active); };
    at::Tensor state = result.last.narrow(0, 0, active), update = of_step(rows);
    of_step(result.states).copy_(state);
    update.sub_(at::matmul(of_step(weight), state));
    state.mul_(of_step(terms.decay)).add_(at::matmul(of_step(terms.key_to_end).transpose(-1, -2), update));
    begin += active;
  }
  return result;
}

// rows: Mᵀ do → dU; added = Qᵀ do.
Scan scan_reverse(const KdaTerms& terms, const at::Tensor& weight, const at::Tensor& rows, const at::Tensor& added,
                  const at::Tensor& last, const SequenceLayout& layout, bool kernel) {
  if (kernel) {
    const auto [states, first] = kernels::kda_scan_reverse(terms, weight, rows, added, last, layout);
    return {states, first};
  }
  Scan result{at::empty({rows.size(0), rows.size(1), last.size(2), last.size(3)}, last.options()), last.clone()};
  int64_t end = rows.size(0);
  for (size_t step = layout.active_documents.size(); step-- > 0;) {
    const int64_t active = layout.active_documents[step];
    end -= active;
    const auto of_step = [&](const at::Tensor& x) { return x.narrow(0, end, active); };
    at::Tensor state = result.last.narrow(0, 0, active), update = of_step(rows);
    of_step(result.states).copy_(state);
    update.add_(at::matmul(of_step(terms.key_to_end), state));
    state.mul_(of_step(terms.decay)).add_(of_step(added));
    state.sub_(at::matmul(of_step(weight).transpose(-1, -2), update));
  }
  return result;
}

struct KdaCall : torch::CustomClassHolder {
  SequenceLayout layout;
  double scale = 1;
  bool bounded = false;
};

KdaRows rows_from(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& g,
                  const at::Tensor& beta, const KdaCall& call) {
  return {q.contiguous(), k.contiguous(), v.contiguous(), g.contiguous(), beta.contiguous(), call.scale};
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b) { return at::matmul(a, b); }
at::Tensor transposed(const at::Tensor& x) { return x.transpose(-1, -2); }

class ChunkedKda : public torch::autograd::Function<ChunkedKda> {
 public:
  static variable_list forward(AutogradContext* ctx, const c10::intrusive_ptr<KdaCall>& call, const at::Tensor& q,
                               const at::Tensor& k, const at::Tensor& v, const at::Tensor& g, const at::Tensor& beta,
                               const at::Tensor& initial_state) {
    const SequenceLayout& layout = call->layout;
    const KdaRows rows = rows_from(q, k, v, g, beta, *call);
    const ProductPrecision precision(multiplies_in_tf32(rows));
    const KdaTerms terms = prepare(rows, layout, call->bounded);
    const at::Tensor weight = product(terms.solve, terms.key), update = product(terms.solve, terms.value);
    const at::Tensor first = initial_state.index_select(0, layout.document_of_rank);
    const Scan states = scan(terms, weight, update, first, layout, kernels::kda_takes(rows, layout.chunk_size));
    const at::Tensor out = product(terms.query, states.states).add_(product(terms.attention, update));
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    ctx->save_for_backward({rows.q, rows.k, rows.v, rows.g, rows.beta, states.states});
    return {rows_of(out, layout), states.last.index_select(0, layout.rank_of_document)};
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradient) {
    const auto capsule = ctx->saved_data["call"].toCapsule();
    const auto& call = static_cast<const KdaCall&>(*capsule);
    const SequenceLayout& layout = call.layout;
    const variable_list saved = ctx->get_saved_variables();
    const KdaRows rows = rows_from(saved[0], saved[1], saved[2], saved[3], saved[4], call);
    const at::Tensor& before = saved[5];
    const ProductPrecision precision(multiplies_in_tf32(rows));
    const KdaTerms terms = prepare(rows, layout, call.bounded);
    const at::Tensor out_gradient = chunk_of(gradient[0], layout);
    const at::Tensor weight = product(terms.solve, terms.key);
    const at::Tensor update = product(terms.solve, terms.value).sub_(product(weight, before));
    const at::Tensor d_update = product(transposed(terms.attention), out_gradient);
    const Scan behind = scan_reverse(terms, weight, d_update, product(transposed(terms.query), out_gradient),
                                     gradient[1].index_select(0, layout.document_of_rank), layout,
                                     kernels::kda_takes(rows, layout.chunk_size));
    const at::Tensor right = product(transposed(terms.solve), d_update);  // β ⊙ dR
    kernels::KdaTermGradients gradients;
    gradients.query = product(out_gradient, transposed(before));
    gradients.key = product(right, transposed(before)).neg_();
    gradients.key_to_end = product(update, transposed(behind.states));
    gradients.attention = product(out_gradient, transposed(update));
    gradients.pair = product(right, transposed(update)).neg_();
    gradients.decay = (before * behind.states).sum(-1, true);
    const kernels::KdaRowGradients found = prepare_backward(rows, layout, call.bounded, gradients);
    // β ≥ the smallest normal number wherever it is a sigmoid's; rows of padding have 0 and are not taken.
    const at::Tensor beta = rows.beta.to(rows.g.scalar_type());
    const at::Tensor with_update = rows_of((right * update).sum(-1, true), layout).squeeze(-1);
    const at::Tensor d_beta = at::where(beta == 0, at::zeros_like(beta), with_update / beta / beta);
    return {at::Tensor(),
            found.q,
            found.k,
            rows_of(right, layout).to(rows.v.scalar_type()),
            found.g,
            d_beta.to(rows.beta.scalar_type()),
            behind.last.index_select(0, layout.rank_of_document)};
  }
};

}  // namespace

at::Tensor unit_lower_inverse(const at::Tensor& lower) {
  const int64_t size = lower.size(-1);
  std::vector<int64_t> shape = lower.sizes().vec();
  shape.back() = 1;
  shape.insert(shape.end() - 1, 1);
  at::Tensor inverse = at::ones(shape, lower.options().requires_grad(false));  // [.., blocks, n, n], here n = 1
  for (int64_t n = 1; n < size; n *= 2) {
    const auto [first, second] = halves(inverse);
    const int64_t blocks = size / (2 * n);
    shape = lower.sizes().vec();
    shape.pop_back();
    shape.back() = blocks;
    shape.insert(shape.end(), {2 * n, blocks, 2 * n});
    // The lower left squares of the diagonal blocks of 2n rows.
    const at::Tensor square =
        lower.reshape(shape).diagonal(0, -4, -2).movedim(-1, -3).narrow(-2, n, n).narrow(-1, 0, n);
    const at::Tensor below = -at::matmul(second, at::matmul(square, first));
    inverse = at::cat({at::cat({first, at::zeros_like(first)}, -1), at::cat({below, second}, -1)}, -2);
  }
  return inverse.squeeze(-3);
}

KdaOutputs kda_chunked(const KdaInputs& inputs, const SequenceLayout& layout) {
  const at::ScalarType type = inputs.g.scalar_type();
  const int64_t heads = inputs.q.size(1), key_dim = inputs.q.size(2), value_dim = inputs.v.size(2);
  const at::Tensor state = inputs.initial_state.defined() ? inputs.initial_state.to(type)
                                                          : at::zeros({layout.num_documents, heads, key_dim, value_dim},
                                                                      inputs.g.options().requires_grad(false));
  if (layout.num_tokens == 0) return {at::zeros({0, heads, value_dim}, state.options()), state};
  auto call = c10::make_intrusive<KdaCall>();
  call->layout = layout;
  call->scale = inputs.scale;
  call->bounded = inputs.bounded;
  const variable_list outputs = ChunkedKda::apply(call, inputs.q, inputs.k, inputs.v, inputs.g, inputs.beta, state);
  return {outputs[0], outputs[1]};
}

}  // namespace tandem::train
