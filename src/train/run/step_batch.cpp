#include "train/run/step_batch.h"

#include <ATen/ATen.h>

#include <utility>

namespace tandem::train {
namespace {

at::Tensor int64_tensor(const std::vector<int64_t>& values) {
  return at::tensor(values, at::TensorOptions().dtype(at::kLong));
}

// Applies `change` to every tensor of a batch.
template <class Change>
void change_tensors(MicroBatch& batch, const Change& change) {
  for (at::Tensor* tensor : {&batch.tokens, &batch.trained_rows, &batch.targets, &batch.valid_rows}) {
    if (tensor->defined()) *tensor = change(*tensor);
  }
  batch.layout.change_tensors(change);
}

// Collects sequences and turns them into one micro-batch.
class MicroBatchBuilder {
 public:
  void add(const PackedSequence& sequence) {
    const auto base = static_cast<int64_t>(tokens_.size());
    const auto length = static_cast<int64_t>(sequence.tokens.size());
    for (size_t i = 1; i < sequence.cu_seqlens.size(); ++i) cu_seqlens_.push_back(base + sequence.cu_seqlens[i]);
    tokens_.insert(tokens_.end(), sequence.tokens.begin(), sequence.tokens.end());
    for (int64_t i = 0; i < length; ++i) {
      const int32_t target = sequence.targets[static_cast<size_t>(i)];
      if (i < sequence.num_valid) valid_rows_.push_back(base + i);
      if (target == kNoTarget) continue;
      trained_rows_.push_back(base + i);
      targets_.push_back(target);
    }
    has_padding_ = has_padding_ || sequence.num_valid < length;
  }

  Result<MicroBatch> build(const BatchOptions& options) const {
    MicroBatch batch;
    Result<SequenceLayout> layout = make_sequence_layout(cu_seqlens_, options.chunk_size, at::kCPU);
    if (!layout.is_ok()) return layout.status();
    batch.layout = std::move(layout).value();
    batch.tokens = int64_tensor(tokens_);
    batch.trained_rows = int64_tensor(trained_rows_);
    batch.targets = int64_tensor(targets_);
    if (has_padding_) batch.valid_rows = int64_tensor(valid_rows_);
    if (options.pinned) change_tensors(batch, [](const at::Tensor& tensor) { return tensor.pin_memory(); });
    return batch;
  }

 private:
  std::vector<int64_t> tokens_, trained_rows_, targets_, valid_rows_;
  std::vector<int64_t> cu_seqlens_ = {0};
  bool has_padding_ = false;
};

}  // namespace

Result<std::vector<MicroBatch>> make_micro_batches(int64_t num_sequences,
                                                   FunctionRef<void(int64_t, PackedSequence&)> read,
                                                   const BatchOptions& options) {
  std::vector<MicroBatch> batches;
  PackedSequence sequence;
  for (int64_t next = 0; next < num_sequences;) {
    MicroBatchBuilder builder;
    int64_t tokens = 0, length = 0;
    do {
      read(next, sequence);
      builder.add(sequence);
      length = static_cast<int64_t>(sequence.tokens.size());
      tokens += length;
    } while (++next < num_sequences && tokens + length <= options.micro_batch_tokens);
    Result<MicroBatch> batch = builder.build(options);
    if (!batch.is_ok()) return batch.status();
    batches.push_back(std::move(batch).value());
  }
  return batches;
}

Result<StepBatch> make_step_batch(const RunData& data, int64_t step, const BatchOptions& options) {
  StepBatch batch;
  batch.step = step;
  batch.places = data.step_places(step);
  const auto read = [&](int64_t i, PackedSequence& out) { data.read(batch.places[static_cast<size_t>(i)], out); };
  Result<std::vector<MicroBatch>> micro = make_micro_batches(static_cast<int64_t>(batch.places.size()), read, options);
  if (!micro.is_ok()) return micro.status();
  batch.micro_batches = std::move(micro).value();
  for (const MicroBatch& m : batch.micro_batches) {
    batch.num_tokens += m.tokens.size(0);
    batch.num_trained += m.num_trained();
  }
  return batch;
}

MicroBatch to_device(const MicroBatch& batch, at::Device device) {
  MicroBatch copy = batch;
  change_tensors(copy, [device](const at::Tensor& tensor) { return tensor.to(device, /*non_blocking=*/true); });
  return copy;
}

}  // namespace tandem::train
