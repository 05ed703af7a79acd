// tensor/view.h: TensorView, a non-owning strided window on memory; travels by value.
#pragma once

#include <cstdint>
#include <type_traits>

namespace tandem {

template <class T, int Rank>
struct TensorView {
  T* data = nullptr;
  int64_t shape[Rank] = {};   // elements
  int64_t stride[Rank] = {};  // elements, not bytes

  // A view of contiguous row-major memory: TensorView<float, 2>::contiguous(p, {rows, columns}).
  static TensorView contiguous(T* data, const int64_t (&shape)[Rank]) {
    TensorView view;
    view.data = data;
    int64_t stride = 1;
    for (int axis = Rank - 1; axis >= 0; --axis) {
      view.shape[axis] = shape[axis];
      view.stride[axis] = stride;
      stride *= shape[axis];
    }
    return view;
  }

  operator TensorView<const T, Rank>() const requires(!std::is_const_v<T>) {
    TensorView<const T, Rank> view;
    view.data = data;
    for (int axis = 0; axis < Rank; ++axis) {
      view.shape[axis] = shape[axis];
      view.stride[axis] = stride[axis];
    }
    return view;
  }

  template <class... Index>
  requires(sizeof...(Index) == Rank) T& operator()(Index... index) const {
    int64_t offset = 0;
    int axis = 0;
    ((offset += static_cast<int64_t>(index) * stride[axis++]), ...);
    return data[offset];
  }

  // Rows [begin, begin + count) of the first axis.
  TensorView rows(int64_t begin, int64_t count) const {
    TensorView view = *this;
    view.data += begin * stride[0];
    view.shape[0] = count;
    return view;
  }
  // Columns [begin, begin + count) of the last axis.
  TensorView columns(int64_t begin, int64_t count) const {
    TensorView view = *this;
    view.data += begin * stride[Rank - 1];
    view.shape[Rank - 1] = count;
    return view;
  }
  T* row(int64_t i) const { return data + i * stride[0]; }
  bool last_axis_contiguous() const { return shape[Rank - 1] <= 1 || stride[Rank - 1] == 1; }
};

template <class T>
using VectorView = TensorView<T, 1>;
template <class T>
using MatrixView = TensorView<T, 2>;

// A [rows, heads * width] matrix seen as [rows, heads, width]; no copy.
template <class T>
TensorView<T, 3> split_heads(const TensorView<T, 2>& matrix, int64_t heads) {
  TensorView<T, 3> view;
  view.data = matrix.data;
  const int64_t width = matrix.shape[1] / heads;
  view.shape[0] = matrix.shape[0];
  view.shape[1] = heads;
  view.shape[2] = width;
  view.stride[0] = matrix.stride[0];
  view.stride[1] = width * matrix.stride[1];
  view.stride[2] = matrix.stride[1];
  return view;
}

}  // namespace tandem
