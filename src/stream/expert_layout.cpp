#include "stream/expert_layout.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "stream/direct_file.h"

namespace tandem {
namespace {

// Reading so much more is cheaper than another read.
constexpr uint64_t kMaxGapBytes = 16384;

struct Piece {
  size_t tensor = 0;
  uint32_t shard = 0;
  uint64_t begin = 0, end = 0;  // in the file
  bool aligned = true;
};

uint64_t element_bytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32: return 4;
    case WeightFormat::kF16:
    case WeightFormat::kBF16: return 2;
    case WeightFormat::kMxfp4: return 1;
  }
  return 1;
}

class LayoutBuilder {
 public:
  explicit LayoutBuilder(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  Status add(const WeightView& view) {
    const auto data_bytes = static_cast<uint64_t>(view.rows * view.row_bytes());
    TANDEM_RETURN_IF_ERROR(add_piece(view.data, data_bytes, element_bytes(view.format), false));
    if (view.format != WeightFormat::kMxfp4) return Status::ok();
    return add_piece(view.scale, static_cast<uint64_t>(view.rows * (view.cols / 32)), 1, true);
  }

  ExpertLayout finish() {
    sort_pieces();
    bool open = false;  // the last extent may grow
    for (size_t i = 0; i < count_; ++i) {
      const Piece& piece = pieces_[i];
      if (!(open && piece.aligned && fits_last_extent(piece))) {
        layout_.extents[layout_.num_extents++] = {piece.shard, direct_floor(piece.begin), 0, layout_.slot_bytes};
      }
      ExpertLayout::Extent& extent = layout_.extents[layout_.num_extents - 1];
      extent.num_bytes = std::max(extent.num_bytes, direct_ceil(piece.end) - extent.offset);
      layout_.slot_bytes = extent.slot_offset + extent.num_bytes;
      layout_.tensors[piece.tensor].slot_offset = extent.slot_offset + (piece.begin - extent.offset);
      open = piece.aligned;
    }
    layout_.num_tensors = count_;
    return layout_;
  }

 private:
  void sort_pieces() {
    for (size_t i = 1; i < count_; ++i) {
      for (size_t j = i; j > 0; --j) {
        Piece& a = pieces_[j - 1];
        Piece& b = pieces_[j];
        if (std::tie(a.shard, a.begin) <= std::tie(b.shard, b.begin)) break;
        std::swap(a, b);
      }
    }
  }

  Status add_piece(const void* mapped, uint64_t num_bytes, uint64_t element, bool is_scale) {
    const std::optional<Checkpoint::FilePlace> place = checkpoint_.place_of(mapped);
    if (!place) return Status::failed_precondition("an expert that is no view of the checkpoint's files");
    pieces_[count_] = {count_, place->shard, place->offset, place->offset + num_bytes, place->offset % element == 0};
    layout_.tensors[count_] = {0, num_bytes, place->offset % element, is_scale};
    ++count_;
    return Status::ok();
  }

  bool fits_last_extent(const Piece& piece) const {
    const ExpertLayout::Extent& last = layout_.extents[layout_.num_extents - 1];
    return piece.shard == last.shard && direct_floor(piece.begin) <= last.offset + last.num_bytes + kMaxGapBytes;
  }

  const Checkpoint& checkpoint_;
  ExpertLayout layout_;
  std::array<Piece, ExpertLayout::kMaxTensors> pieces_;
  size_t count_ = 0;
};

}  // namespace

Result<ExpertLayout> ExpertLayout::of(const Checkpoint& checkpoint, const ExpertWeights& mapped) {
  LayoutBuilder builder(checkpoint);
  for (const WeightView* view : {&mapped.w1, &mapped.w3, &mapped.w2}) TANDEM_RETURN_IF_ERROR(builder.add(*view));
  return builder.finish();
}

void settle(const ExpertLayout& layout, std::byte* slot) {
  for (size_t i = 0; i < layout.num_tensors; ++i) {
    const ExpertLayout::Tensor& tensor = layout.tensors[i];
    // Its extent begins at a block's edge, where it would be aligned: there is room below it.
    std::byte* data = slot + tensor.slot_offset;
    if (tensor.shift > 0) std::memmove(data - tensor.shift, data, tensor.num_bytes);
  }
}

ExpertWeights views_in(const ExpertLayout& layout, const ExpertWeights& mapped, const std::byte* slot) {
  ExpertWeights views = mapped;
  size_t next = 0;
  for (WeightView* view : {&views.w1, &views.w3, &views.w2}) {
    const ExpertLayout::Tensor& data = layout.tensors[next++];
    view->data = slot + data.slot_offset - data.shift;
    if (view->format != WeightFormat::kMxfp4) continue;
    view->scale = reinterpret_cast<const uint8_t*>(slot + layout.tensors[next++].slot_offset);
  }
  return views;
}

}  // namespace tandem
