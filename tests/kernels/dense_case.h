// tests/kernels/dense_case.h: matrices for the dense operators' tests: strided rows, NaN between them, nothing behind
// the last element (so that a sanitizer sees a read past it), and weights in every stored format.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/int8_rows.h"
#include "tensor/mxfp4.h"
#include "tensor/view.h"

namespace tandem::test {

inline constexpr WeightFormat kAllFormats[] = {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16,
                                               WeightFormat::kMxfp4, WeightFormat::kInt8};

// [rows, cols] with `padding` NaN elements between rows.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t cols, int64_t padding = 3)
      : rows_(rows),
        cols_(cols),
        stride_(cols + padding),
        data_(static_cast<size_t>(rows == 0 ? 0 : (rows - 1) * stride_ + cols),
              std::numeric_limits<float>::quiet_NaN()) {}

  Matrix(int64_t rows, int64_t cols, std::vector<float> values, int64_t padding = 3) : Matrix(rows, cols, padding) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) (*this)(r, c) = values[static_cast<size_t>(r * cols + c)];
    }
  }

  static Matrix random(int64_t rows, int64_t cols, uint32_t seed, float scale = 1.f, int64_t padding = 3) {
    Matrix matrix(rows, cols, padding);
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal(0.f, scale);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) matrix(r, c) = normal(engine);
    }
    return matrix;
  }

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  float& operator()(int64_t r, int64_t c) { return data_[static_cast<size_t>(r * stride_ + c)]; }
  float operator()(int64_t r, int64_t c) const { return data_[static_cast<size_t>(r * stride_ + c)]; }

  MatrixView<float> view() {
    MatrixView<float> view;
    view.data = data_.data();
    view.shape[0] = rows_;
    view.shape[1] = cols_;
    view.stride[0] = stride_;
    view.stride[1] = 1;
    return view;
  }

  std::vector<float> row(int64_t r) const {
    const auto begin = data_.begin() + r * stride_;
    return {begin, begin + cols_};
  }
  std::vector<float> values() const {
    std::vector<float> out;
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) out.push_back((*this)(r, c));
    }
    return out;
  }
  // True while nobody wrote between the rows.
  bool padding_is_nan() const {
    for (int64_t r = 0; r + 1 < rows_; ++r) {
      for (int64_t c = cols_; c < stride_; ++c) {
        if (!std::isnan(data_[static_cast<size_t>(r * stride_ + c)])) return false;
      }
    }
    return true;
  }

 private:
  int64_t rows_, cols_, stride_;
  std::vector<float> data_;
};

// A random weight in its stored form, and the exact f32 values it stands for.
class StoredWeight {
 public:
  StoredWeight(WeightFormat format, int64_t rows, int64_t cols, uint32_t seed)
      : rows_(rows), cols_(cols), format_(format) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal;
    values_.resize(static_cast<size_t>(rows * cols));
    for (float& v : values_) v = normal(engine);
    pack();
  }

  WeightView view() const {
    WeightView view;
    view.data = bytes_.data();
    view.scale = scale_.empty() ? nullptr : scale_.data();
    view.rows = rows_;
    view.cols = cols_;
    view.format = format_;
    return view;
  }
  float value(int64_t r, int64_t c) const { return values_[static_cast<size_t>(r * cols_ + c)]; }

 private:
  void pack() {
    const size_t count = values_.size();
    if (format_ == WeightFormat::kF32) {
      bytes_.resize(count * 4);
      std::memcpy(bytes_.data(), values_.data(), count * 4);
    } else if (format_ == WeightFormat::kMxfp4) {
      bytes_.resize(count / 2);
      scale_.resize(count / 32);
      for (size_t g = 0; g < scale_.size(); ++g) {
        mxfp4_quantize_group(std::span<const float, 32>(values_.data() + 32 * g, 32),
                             std::span<uint8_t, 16>(bytes_.data() + 16 * g, 16), scale_[g]);
      }
    } else if (format_ == WeightFormat::kInt8) {
      const WeightView packed = view();
      bytes_.resize(static_cast<size_t>(packed.rows * packed.row_bytes()));
      scale_.resize(static_cast<size_t>(packed.rows * packed.scale_row_bytes()));
      for (int64_t r = 0; r < rows_; ++r) {
        const float scale = int8_quantize_row({values_.data() + r * cols_, static_cast<size_t>(cols_)},
                                              reinterpret_cast<int8_t*>(bytes_.data()) + r * packed.row_bytes());
        std::memcpy(scale_.data() + r * packed.scale_row_bytes(), &scale, sizeof scale);
      }
    } else {
      bytes_.resize(count * 2);
      for (size_t i = 0; i < count; ++i) {
        const uint16_t bits = format_ == WeightFormat::kBF16 ? to_bf16(values_[i]).bits : to_f16(values_[i]).bits;
        std::memcpy(bytes_.data() + 2 * i, &bits, 2);
      }
    }
    for (int64_t r = 0; r < rows_; ++r) {
      weight_row_to_f32(view(), r, {values_.data() + r * cols_, static_cast<size_t>(cols_)});
    }
  }

  int64_t rows_, cols_;
  WeightFormat format_;
  std::vector<uint8_t> bytes_, scale_;
  std::vector<float> values_;
};

}  // namespace tandem::test
