// stream/expert_layout.h: where a routed expert lies on disk, and where its tensors lie in the memory it is read into.
//
//   An expert has up to six tensors: three matrices, in MXFP4 each with its scales. Neighbours in a file are read in
//   one piece, with the blocks around them: the released files, and ours, store an expert's six one after the other,
//   and that is one read. Any other layout becomes as many reads as it has pieces. In memory an extent keeps its place
//   within a block, so a tensor is as aligned as in the file; one that its element type does not allow there is read in
//   an extent of its own and moved down by less than an element (settle()).
//   Threading: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "tensor/weight_view.h"
#include "weights/checkpoint.h"

namespace tandem {

struct ExpertLayout {
  static constexpr size_t kMaxTensors = 6;
  struct Extent {
    uint32_t shard = 0;
    uint64_t offset = 0;     // in the file; offset, num_bytes and slot_offset are whole blocks
    uint64_t num_bytes = 0;  // may reach past the end of the file
    uint64_t slot_offset = 0;
  };
  struct Tensor {
    uint64_t slot_offset = 0;  // as it is read
    uint64_t num_bytes = 0;
    uint64_t shift = 0;  // bytes that settle() moves it down by
    bool is_scale = false;
  };
  std::array<Extent, kMaxTensors> extents;
  size_t num_extents = 0;
  std::array<Tensor, kMaxTensors> tensors;  // w1, w1's scales, w3, …, w2, …: those there are
  size_t num_tensors = 0;
  uint64_t slot_bytes = 0;  // of all extents together

  // `mapped` are views of the checkpoint's files. kFailedPrecondition when one is not.
  static Result<ExpertLayout> of(const Checkpoint& checkpoint, const ExpertWeights& mapped);
};

// Moves what was read at an address that its type does not allow. Once, after the reads.
void settle(const ExpertLayout& layout, std::byte* slot);

// The expert's views in the memory of its slot, settled.
ExpertWeights views_in(const ExpertLayout& layout, const ExpertWeights& mapped, const std::byte* slot);

}  // namespace tandem
