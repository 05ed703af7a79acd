// stream/read_layout.h: where matrices that are read together lie on disk, and where in the memory they are read into.
//
//   A matrix is one tensor, in MXFP4 two with its scales. Neighbours in a file are read in one piece, with the blocks
//   around them: the released files, and ours, store an expert's six tensors one after the other, and that is one read.
//   Any other layout becomes as many extents as it has pieces. In memory an extent keeps its place within a block, so a
//   tensor is as aligned as in the file; one that its element type does not allow there is read in an extent of its own
//   and moved down by less than an element (settle()).
//   Threading: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "tensor/weight_view.h"
#include "weights/checkpoint.h"

namespace tandem {

struct ReadLayout {
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
  std::vector<Extent> extents;
  std::vector<Tensor> tensors;  // of each matrix in order: its data, then its scales if it has any
  uint64_t slot_bytes = 0;      // of all extents together

  // `mapped` are views of the checkpoint's files. kFailedPrecondition when one is not.
  static Result<ReadLayout> of(const Checkpoint& checkpoint, std::span<const WeightView> mapped);
};

// Moves what was read at an address that its type does not allow. Once, after the reads.
void settle(const ReadLayout& layout, std::byte* slot);

// Points the views of the layout's matrices, in its order, to the memory of the slot, settled.
void point_into(const ReadLayout& layout, const std::byte* slot, std::span<WeightView* const> views);

// A number that stands for the bytes of all tensors, settled; never 0.
uint64_t content_hash(const ReadLayout& layout, const std::byte* slot);

}  // namespace tandem
