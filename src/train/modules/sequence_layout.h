// train/modules/sequence_layout.h: where the documents of a packed batch lie, in the shapes that the mixers work on.
//
//   A batch is [T] rows holding documents one after the other; cu_seqlens are their N+1 boundaries. Nothing passes a
//   boundary: KDA and the short convolution start from zero in each document, attention sees its own document only.
//   KDA works on chunks of `chunk_size` rows, the last one of a document padded. Chunks are sorted by their number in
//   the document, and within one number documents with more chunks come first, so that step i of the state recurrence
//   is one slice of chunks and the documents that go on are a prefix of those before.
//   Attention works on documents of similar length side by side, padded to the longest of their bucket.
//   Threading: immutable once made; any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "base/result.h"

namespace tandem::train {

struct DocumentBucket {
  int64_t num_documents = 0;
  int64_t length = 0;
  at::Tensor rows;  // [num_documents · length] row of the batch, T where padded
};

struct SequenceLayout {
  int64_t num_tokens = 0;
  int64_t num_documents = 0;
  at::Tensor position;  // [T] of the row in its document

  int64_t chunk_size = 0;
  std::vector<int64_t> active_documents;  // of step i: how many documents have more than i chunks
  at::Tensor step_begin;                  // [steps + 1] the first chunk of step i: sums of active_documents
  at::Tensor chunk_rows;                  // [chunks · chunk_size] row of the batch, T where padded
  at::Tensor row_in_chunks;               // [T] the inverse
  at::Tensor rank_of_document;            // [N] place in the order by falling chunk count
  at::Tensor document_of_rank;            // [N]

  std::vector<DocumentBucket> buckets;
  at::Tensor bucket_rows;         // the rows of all buckets
  at::Tensor row_in_buckets;      // [T] place in the concatenation of the buckets
  bool buckets_in_order = false;  // both are 0, 1, 2, …

  // Replaces every tensor by what change() makes of it: the one list of them, for moving a layout to a device.
  void change_tensors(FunctionRef<at::Tensor(const at::Tensor&)> change);
};

// cu_seqlens: 0 first, not falling, the number of rows last. chunk_size: a power of two of at least 16.
Result<SequenceLayout> make_sequence_layout(std::span<const int64_t> cu_seqlens, int64_t chunk_size, at::Device device);

// x [T, …] at `rows`, zeros where rows is T: [rows, …].
at::Tensor gather_padded(const at::Tensor& x, const at::Tensor& rows);
// The same where every row of x is taken once: inverse [T] is its place among `rows`. The gradient is a gather too, so
// its value does not depend on thread timing.
at::Tensor permute_padded(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& inverse);

}  // namespace tandem::train
