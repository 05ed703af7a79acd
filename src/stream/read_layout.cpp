#include "stream/read_layout.h"

#include <xxhash.h>

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
    case WeightFormat::kMxfp4:
    case WeightFormat::kInt8: return 1;
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

  ReadLayout finish() {
    std::sort(pieces_.begin(), pieces_.end(),
              [](const Piece& a, const Piece& b) { return std::tie(a.shard, a.begin) < std::tie(b.shard, b.begin); });
    bool open = false;  // the last extent may grow
    for (const Piece& piece : pieces_) {
      if (!(open && piece.aligned && fits_last_extent(piece))) {
        layout_.extents.push_back({piece.shard, direct_floor(piece.begin), 0, layout_.slot_bytes});
      }
      ReadLayout::Extent& extent = layout_.extents.back();
      extent.num_bytes = std::max(extent.num_bytes, direct_ceil(piece.end) - extent.offset);
      layout_.slot_bytes = extent.slot_offset + extent.num_bytes;
      layout_.tensors[piece.tensor].slot_offset = extent.slot_offset + (piece.begin - extent.offset);
      open = piece.aligned;
    }
    return std::move(layout_);
  }

 private:
  Status add_piece(const void* mapped, uint64_t num_bytes, uint64_t element, bool is_scale) {
    const std::optional<Checkpoint::FilePlace> place = checkpoint_.place_of(mapped);
    if (!place) return Status::failed_precondition("a matrix that is no view of the checkpoint's files");
    pieces_.push_back(
        {layout_.tensors.size(), place->shard, place->offset, place->offset + num_bytes, place->offset % element == 0});
    layout_.tensors.push_back({0, num_bytes, place->offset % element, is_scale});
    return Status::ok();
  }

  bool fits_last_extent(const Piece& piece) const {
    const ReadLayout::Extent& last = layout_.extents.back();
    return piece.shard == last.shard && direct_floor(piece.begin) <= last.offset + last.num_bytes + kMaxGapBytes;
  }

  const Checkpoint& checkpoint_;
  ReadLayout layout_;
  std::vector<Piece> pieces_;
};

}  // namespace

Result<ReadLayout> ReadLayout::of(const Checkpoint& checkpoint, std::span<const WeightView> mapped) {
  LayoutBuilder builder(checkpoint);
  for (const WeightView& view : mapped) TANDEM_RETURN_IF_ERROR(builder.add(view));
  return builder.finish();
}

void settle(const ReadLayout& layout, std::byte* slot) {
  for (const ReadLayout::Tensor& tensor : layout.tensors) {
    // Its extent begins at a block's edge, where it would be aligned: there is room below it.
    std::byte* data = slot + tensor.slot_offset;
    if (tensor.shift > 0) std::memmove(data - tensor.shift, data, tensor.num_bytes);
  }
}

void point_into(const ReadLayout& layout, const std::byte* slot, std::span<WeightView* const> views) {
  size_t next = 0;
  for (WeightView* view : views) {
    const ReadLayout::Tensor& data = layout.tensors[next++];
    view->data = slot + data.slot_offset - data.shift;
    if (view->format != WeightFormat::kMxfp4) continue;
    view->scale = reinterpret_cast<const uint8_t*>(slot + layout.tensors[next++].slot_offset);
  }
}

uint64_t content_hash(const ReadLayout& layout, const std::byte* slot) {
  uint64_t hash = 0;
  for (const ReadLayout::Tensor& tensor : layout.tensors) {
    hash = XXH3_64bits_withSeed(slot + tensor.slot_offset - tensor.shift, tensor.num_bytes, hash);
  }
  return hash != 0 ? hash : 1;
}

}  // namespace tandem
