// tensor/weight_view.h: a weight matrix where it lies in a checkpoint file, in the type it was stored in.
//
//   W is [rows, cols], row-major, y = x Wᵀ. kMxfp4: `data` holds two E2M1 codes a byte ([rows, cols/2], low
//   nibble = even column) and `scale` one E8M0 byte per 32 columns ([rows, cols/32]); see tensor/mxfp4.h.
//   kInt8: a row is its `cols` signed codes, then one bf16 scale per 64 columns (the last group may be shorter); the
//   value is code · scale, exact in f32. Rows follow each other without padding. Made at load
//   (weights/resident_weights.h); no file stores it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem {

enum class WeightFormat : uint8_t { kF32, kF16, kBF16, kMxfp4, kInt8 };

inline constexpr int64_t kInt8GroupColumns = 64;

struct WeightView {
  const void* data = nullptr;
  const uint8_t* scale = nullptr;  // kMxfp4 only
  int64_t rows = 0;
  int64_t cols = 0;
  WeightFormat format = WeightFormat::kBF16;

  bool empty() const { return data == nullptr; }

  int64_t row_bytes() const {
    switch (format) {
      case WeightFormat::kF32: return cols * 4;
      case WeightFormat::kF16:
      case WeightFormat::kBF16: return cols * 2;
      case WeightFormat::kMxfp4: return cols / 2;
      case WeightFormat::kInt8: return cols + 2 * ((cols + kInt8GroupColumns - 1) / kInt8GroupColumns);
    }
    return 0;
  }
  int64_t total_bytes() const { return rows * (row_bytes() + (format == WeightFormat::kMxfp4 ? cols / 32 : 0)); }

  WeightView slice_rows(int64_t begin, int64_t count) const {
    WeightView view = *this;
    view.data = static_cast<const std::byte*>(data) + begin * row_bytes();
    if (scale != nullptr) view.scale = scale + begin * (cols / 32);
    view.rows = count;
    return view;
  }
};

// One routed expert: y = W2 act(W1 z, W3 z).
struct ExpertWeights {
  WeightView w1;  // gate [I, Dl]
  WeightView w3;  // up   [I, Dl]
  WeightView w2;  // down [Dl, I]
};

}  // namespace tandem
