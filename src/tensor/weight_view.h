// tensor/weight_view.h: a weight matrix where it lies in a checkpoint file, in the type it was stored in.
//
//   W is [rows, cols], row-major, y = x Wᵀ. kMxfp4: `data` holds two E2M1 codes a byte ([rows, cols/2], low
//   nibble = even column) and `scale` one E8M0 byte per 32 columns ([rows, cols/32]); see tensor/mxfp4.h.
//   kInt8: `data` holds rows of signed codes, each filled up with zero codes to a multiple of 64, and `scale` one f32 a
//   row ([rows], at any address); the value is code · scale, exact in f32 (tensor/int8_rows.h). A row fills whole cache
//   lines, so a tile of rows is read without a line twice and the tail of a row without a mask; the scales lie apart,
//   sixteen to a line, since in the row they would cost a line each. Made at load (weights/resident_weights.h); no file
//   stores it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem {

enum class WeightFormat : uint8_t { kF32, kF16, kBF16, kMxfp4, kInt8 };

inline constexpr int64_t kInt8RowAlign = 64;  // bytes, hence columns

struct WeightView {
  const void* data = nullptr;
  const uint8_t* scale = nullptr;  // kMxfp4, and the bytes of kInt8's f32
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
      case WeightFormat::kInt8: return (cols + kInt8RowAlign - 1) / kInt8RowAlign * kInt8RowAlign;
    }
    return 0;
  }
  int64_t scale_row_bytes() const {
    if (format == WeightFormat::kMxfp4) return cols / 32;
    return format == WeightFormat::kInt8 ? static_cast<int64_t>(sizeof(float)) : 0;
  }
  int64_t total_bytes() const { return rows * (row_bytes() + scale_row_bytes()); }

  WeightView slice_rows(int64_t begin, int64_t count) const {
    WeightView view = *this;
    view.data = static_cast<const std::byte*>(data) + begin * row_bytes();
    if (scale != nullptr) view.scale = scale + begin * scale_row_bytes();
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
