#include "train/modules/widen_tensor.h"

#include <memory>

#include "base/check.h"
#include "tensor/mxfp4.h"

namespace tandem::train {
namespace {

WeightFormat format_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return WeightFormat::kF32;
    case DType::kF16: return WeightFormat::kF16;
    case DType::kBF16: return WeightFormat::kBF16;
    default: TANDEM_CHECK(false, "check_checkpoint() lets F32, F16 and BF16 pass"); return WeightFormat::kF32;
  }
}

}  // namespace

void widen_tensor(const Checkpoint& checkpoint, const ExpectedTensor& tensor, const StoredTensor& stored,
                  std::vector<float>& out) {
  // The file aligns nothing; memory of our own does.
  const std::span<const std::byte> bytes = checkpoint.data(stored.weight);
  const auto aligned = std::make_unique<std::byte[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), aligned.get());
  WeightView view;
  view.data = aligned.get();
  if (stored.scale) {
    view.format = WeightFormat::kMxfp4;
    view.scale = reinterpret_cast<const uint8_t*>(checkpoint.data(*stored.scale).data());
    view.rows = tensor.shape[0];
    view.cols = tensor.shape[1];
  } else {
    view.format = format_of(stored.weight.dtype);
    view.rows = 1;
    view.cols = static_cast<int64_t>(stored.weight.num_bytes) / dtype_size(stored.weight.dtype);
  }
  out.resize(static_cast<size_t>(view.rows * view.cols));
  for (int64_t row = 0; row < view.rows; ++row) {
    weight_row_to_f32(view, row,
                      std::span(out).subspan(static_cast<size_t>(row * view.cols), static_cast<size_t>(view.cols)));
  }
}

}  // namespace tandem::train
