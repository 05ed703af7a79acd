// train/modules/kda_kernel_calls.cpp: the chunk form of KDA through its kernels.
#include "train/cuda/kda_kernels.h"
#include "train/modules/kernel_calls.h"
#include "train/modules/kernel_launch.h"

namespace tandem::train::kernels {
namespace {

cuda::KdaRows kda_rows(const KdaRows& rows, const SequenceLayout& layout) {
  cuda::KdaRows args;
  args.q = rows.q.data_ptr();
  args.k = rows.k.data_ptr();
  args.v = rows.v.data_ptr();
  args.g = float_data(rows.g);
  args.beta = float_data(rows.beta);
  args.chunk_rows = layout.chunk_rows.data_ptr<int64_t>();
  args.rows = rows.q.size(0);
  args.chunks = layout.chunk_rows.size(0) / layout.chunk_size;
  args.heads = static_cast<int>(rows.q.size(1));
  args.dim = static_cast<int>(rows.q.size(2));
  args.scale = static_cast<float>(rows.scale);
  args.type = element_of(rows.q);
  return args;
}

cuda::KdaScanArgs kda_scan_args(const KdaTerms& terms, const at::Tensor& rows, const at::Tensor& states,
                                const at::Tensor& first, const at::Tensor& last, const SequenceLayout& layout) {
  cuda::KdaScanArgs args;
  args.decay = float_data(terms.decay);
  args.rows = float_data(rows);
  args.states = float_data(states);
  args.first = float_data(first);
  args.last = float_data(last);
  args.step_begin = layout.step_begin.data_ptr<int64_t>();
  args.documents = layout.num_documents;
  args.steps = static_cast<int>(layout.active_documents.size());
  args.heads = static_cast<int>(rows.size(1));
  args.dim = static_cast<int>(rows.size(3));
  return args;
}

}  // namespace

bool kda_takes(const KdaRows& rows, int64_t chunk_size) {
  return take(rows.q) && rows.k.scalar_type() == rows.q.scalar_type() && rows.v.scalar_type() == rows.q.scalar_type() &&
         rows.g.scalar_type() == at::kFloat && rows.beta.scalar_type() == at::kFloat &&
         cuda::kda_takes(chunk_size, rows.q.size(2), rows.v.size(2));
}

KdaTerms kda_prepare(const KdaRows& rows, const SequenceLayout& layout) {
  const Place place(rows.q);
  const cuda::KdaRows args = kda_rows(rows, layout);
  const int64_t chunk = layout.chunk_size;
  KdaTerms terms;
  for (at::Tensor* term : {&terms.query, &terms.key, &terms.key_to_end, &terms.value}) {
    *term = floats({args.chunks, args.heads, chunk, args.dim}, rows.q);
  }
  terms.attention = floats({args.chunks, args.heads, chunk, chunk}, rows.q);
  terms.solve = floats({args.chunks, args.heads, chunk, chunk}, rows.q);
  terms.decay = floats({args.chunks, args.heads, args.dim, 1}, rows.q);
  const cuda::KdaTerms out = {float_data(terms.query), float_data(terms.key),       float_data(terms.key_to_end),
                              float_data(terms.value), float_data(terms.attention), float_data(terms.solve),
                              float_data(terms.decay)};
  check(cuda::kda_prepare(args, out, place.stream()), "kda_prepare");
  return terms;
}

KdaRowGradients kda_prepare_backward(const KdaRows& rows, const SequenceLayout& layout,
                                     const KdaTermGradients& gradients) {
  const Place place(rows.q);
  KdaRowGradients out{dense_like(rows.q), dense_like(rows.k), dense_like(rows.g)};
  cuda::KdaTermGradients args;
  args.query = float_data(gradients.query);
  args.key = float_data(gradients.key);
  args.key_to_end = float_data(gradients.key_to_end);
  args.attention = float_data(gradients.attention);
  args.pair = float_data(gradients.pair);
  args.decay = float_data(gradients.decay);
  args.q = out.q.data_ptr();
  args.k = out.k.data_ptr();
  args.g = float_data(out.g);
  check(cuda::kda_prepare_backward(kda_rows(rows, layout), args, place.stream()), "kda_prepare_backward");
  return out;
}

std::pair<at::Tensor, at::Tensor> kda_scan(const KdaTerms& terms, const at::Tensor& weight, const at::Tensor& rows,
                                           const at::Tensor& first, const SequenceLayout& layout) {
  const Place place(rows);
  const at::Tensor states = floats({rows.size(0), rows.size(1), first.size(2), first.size(3)}, rows);
  const at::Tensor last = at::empty_like(first);
  cuda::KdaScanArgs args = kda_scan_args(terms, rows, states, first, last, layout);
  args.weight = float_data(weight);
  args.update_weight = float_data(terms.key_to_end);
  check(cuda::kda_scan(args, place.stream()), "kda_scan");
  return {states, last};
}

std::pair<at::Tensor, at::Tensor> kda_scan_reverse(const KdaTerms& terms, const at::Tensor& weight,
                                                   const at::Tensor& rows, const at::Tensor& added,
                                                   const at::Tensor& last, const SequenceLayout& layout) {
  const Place place(rows);
  const at::Tensor states = floats({rows.size(0), rows.size(1), last.size(2), last.size(3)}, rows);
  const at::Tensor first = at::empty_like(last);
  cuda::KdaScanArgs args = kda_scan_args(terms, rows, states, last, first, layout);
  args.weight = float_data(terms.key_to_end);
  args.update_weight = float_data(weight);
  args.added = float_data(added);
  check(cuda::kda_scan_reverse(args, place.stream()), "kda_scan_reverse");
  return {states, first};
}

}  // namespace tandem::train::kernels
