// kernels/simd/scratch.h: arena memory and the row pointers of a view, for files built for one instruction set.
//
// Scratch is defined out of line in a portable file: the templates of Arena and std::span would otherwise be compiled
// with wide instructions where they are used.
#pragma once

#include <cstdint>

#include "base/arena.h"
#include "kernels/simd/inline.h"
#include "tensor/view.h"

namespace tandem::simd {

// Gives back at the end of its scope what was taken through it. 64-byte aligned, uninitialised. Engine thread only.
class Scratch {
 public:
  explicit Scratch(Arena& arena);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  float* floats(int64_t count);
  int32_t* ints(int64_t count);
  void* bytes(int64_t count);

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

namespace {

template <class T, int Rank>
TANDEM_INLINE T* row_of(const TensorView<T, Rank>& view, int64_t i) {
  return view.data + i * view.stride[0];
}

}  // namespace
}  // namespace tandem::simd
