#include "train/modules/sequence_layout.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/cat.h"
#include "train/modules/kernel_calls.h"

namespace tandem::train {
namespace {

at::Tensor to_device(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(values, at::TensorOptions().dtype(at::kLong)).to(device);
}

Status check(std::span<const int64_t> cu_seqlens, int64_t chunk_size) {
  if (cu_seqlens.empty() || cu_seqlens.front() != 0) return Status::invalid("cu_seqlens: expected to begin with 0");
  if (!std::is_sorted(cu_seqlens.begin(), cu_seqlens.end())) {
    return Status::invalid("cu_seqlens: expected boundaries that do not fall");
  }
  if (chunk_size < 16 || !std::has_single_bit(static_cast<uint64_t>(chunk_size))) {
    return Status::invalid(cat("chunk_size: expected a power of two of at least 16, found ", chunk_size));
  }
  return Status::ok();
}

void lay_chunks(std::span<const int64_t> lengths, std::span<const int64_t> begins, at::Device device,
                SequenceLayout& layout) {
  const int64_t chunk = layout.chunk_size;
  const auto num_chunks = [&](int64_t document) {
    return (lengths[static_cast<size_t>(document)] + chunk - 1) / chunk;
  };
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return num_chunks(a) > num_chunks(b); });

  std::vector<int64_t> rows;
  std::vector<int64_t> row_in_chunks(static_cast<size_t>(layout.num_tokens));
  for (int64_t step = 0; !order.empty() && step < num_chunks(order.front()); ++step) {
    int64_t active = 0;
    for (const int64_t document : order) {
      if (num_chunks(document) <= step) break;
      ++active;
      const int64_t length = lengths[static_cast<size_t>(document)];
      const int64_t begin = begins[static_cast<size_t>(document)];
      for (int64_t i = step * chunk; i < (step + 1) * chunk; ++i) {
        if (i < length) row_in_chunks[static_cast<size_t>(begin + i)] = static_cast<int64_t>(rows.size());
        rows.push_back(i < length ? begin + i : layout.num_tokens);
      }
    }
    layout.active_documents.push_back(active);
  }
  std::vector<int64_t> rank(order.size());
  for (size_t i = 0; i < order.size(); ++i) rank[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  std::vector<int64_t> step_begin = {0};
  for (const int64_t active : layout.active_documents) step_begin.push_back(step_begin.back() + active);
  layout.step_begin = to_device(step_begin, device);
  layout.chunk_rows = to_device(rows, device);
  layout.row_in_chunks = to_device(row_in_chunks, device);
  layout.rank_of_document = to_device(rank, device);
  layout.document_of_rank = to_device(order, device);
}

// Longest first; a bucket takes every document longer than half of its longest.
void lay_buckets(std::span<const int64_t> lengths, std::span<const int64_t> begins, at::Device device,
                 SequenceLayout& layout) {
  std::vector<size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return lengths[a] > lengths[b]; });
  std::vector<int64_t> row_in_buckets(static_cast<size_t>(layout.num_tokens));
  std::vector<int64_t> all_rows;
  int64_t place = 0;
  for (size_t first = 0; first < order.size() && lengths[order[first]] > 0;) {
    DocumentBucket bucket;
    bucket.length = lengths[order[first]];
    std::vector<int64_t> rows;
    for (; first < order.size() && 2 * lengths[order[first]] > bucket.length; ++first) {
      ++bucket.num_documents;
      const size_t document = order[first];
      for (int64_t i = 0; i < bucket.length; ++i, ++place) {
        const bool real = i < lengths[document];
        if (real) row_in_buckets[static_cast<size_t>(begins[document] + i)] = place;
        rows.push_back(real ? begins[document] + i : layout.num_tokens);
      }
    }
    all_rows.insert(all_rows.end(), rows.begin(), rows.end());
    bucket.rows = to_device(rows, device);
    layout.buckets.push_back(std::move(bucket));
  }
  layout.buckets_in_order = all_rows == row_in_buckets && std::is_sorted(all_rows.begin(), all_rows.end());
  layout.bucket_rows = to_device(all_rows, device);
  layout.row_in_buckets = to_device(row_in_buckets, device);
}

class PermutePadded : public torch::autograd::Function<PermutePadded> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& rows,
                            const at::Tensor& inverse) {
    ctx->save_for_backward({inverse});
    return gather_padded(x, rows);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradient) {
    const at::Tensor inverse = ctx->get_saved_variables()[0];
    return {gather_padded(gradient[0], inverse), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

Result<SequenceLayout> make_sequence_layout(std::span<const int64_t> cu_seqlens, int64_t chunk_size,
                                            at::Device device) {
  TANDEM_RETURN_IF_ERROR(check(cu_seqlens, chunk_size));
  SequenceLayout layout;
  layout.num_tokens = cu_seqlens.back();
  layout.num_documents = static_cast<int64_t>(cu_seqlens.size()) - 1;
  layout.chunk_size = chunk_size;
  std::vector<int64_t> lengths, position;
  for (size_t i = 0; i + 1 < cu_seqlens.size(); ++i) {
    lengths.push_back(cu_seqlens[i + 1] - cu_seqlens[i]);
    for (int64_t p = 0; p < lengths.back(); ++p) position.push_back(p);
  }
  layout.position = to_device(position, device);
  lay_chunks(lengths, cu_seqlens.first(lengths.size()), device, layout);
  lay_buckets(lengths, cu_seqlens.first(lengths.size()), device, layout);
  return layout;
}

void SequenceLayout::change_tensors(FunctionRef<at::Tensor(const at::Tensor&)> change) {
  for (at::Tensor* tensor : {&position, &step_begin, &chunk_rows, &row_in_chunks, &rank_of_document, &document_of_rank,
                             &bucket_rows, &row_in_buckets}) {
    *tensor = change(*tensor);
  }
  for (DocumentBucket& bucket : buckets) bucket.rows = change(bucket.rows);
}

at::Tensor gather_padded(const at::Tensor& x, const at::Tensor& rows) {
  const at::Tensor dense = x.contiguous();
  if (!(c10::GradMode::is_enabled() && x.requires_grad()) && kernels::gather_takes(dense)) {
    return kernels::gather(dense, rows);
  }
  std::vector<int64_t> one_row = x.sizes().vec();
  one_row[0] = 1;
  return at::cat({dense, at::zeros(one_row, x.options())}).index_select(0, rows);
}

at::Tensor permute_padded(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& inverse) {
  return PermutePadded::apply(x, rows, inverse);
}

}  // namespace tandem::train
