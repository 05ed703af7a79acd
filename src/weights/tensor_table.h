// weights/tensor_table.h: the names, types, shapes and places of a checkpoint's tensors, compactly: one arena of
// characters, 24 bytes a tensor, every distinct shape once. K3's 497,220 tensors take about 50 MB.
// Threading: filled by one thread; immutable and any thread after sort_by_name().
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tensor/dtype.h"

namespace tandem {

struct TensorEntry {
  std::string_view name;  // interned in the table
  DType dtype = DType::kF32;
  std::span<const int64_t> shape;
  uint32_t shard = 0;
  uint64_t begin = 0;  // bytes into the shard's data section
  uint64_t num_bytes = 0;
};

// Bytes of a tensor, or nothing when the product exceeds 2^63 - 1.
std::optional<uint64_t> tensor_num_bytes(DType dtype, std::span<const int64_t> shape);

class TensorTable {
 public:
  static constexpr uint32_t kMaxShards = 1u << 24;

  // Room for the tensors that headers of `header_bytes` in all can describe. Address space, not memory: pages are
  // taken when they are written.
  void reserve(uint64_t header_bytes);
  // `shape` has a size by tensor_num_bytes(); shard < kMaxShards.
  void add(std::string_view name, DType dtype, std::span<const int64_t> shape, uint32_t shard, uint64_t begin);
  // Equal names stay next to each other, in the order of their shards.
  void sort_by_name();

  int64_t size() const { return static_cast<int64_t>(records_.size()); }
  TensorEntry entry(int64_t i) const;
  std::string_view name(int64_t i) const { return name_of(records_[static_cast<size_t>(i)]); }
  uint32_t shard(int64_t i) const { return records_[static_cast<size_t>(i)].shard_and_dtype >> 8; }
  // O(log n), after sort_by_name(). `hint` is tried first: the position after the last hit finds sorted queries in
  // O(1).
  std::optional<int64_t> find(std::string_view name, int64_t hint = 0) const;
  // Bytes in use, the room of reserve() beyond them not counted.
  uint64_t used_bytes() const;

 private:
  struct Record {
    uint64_t begin = 0;
    uint32_t name_begin = 0;
    uint32_t name_length = 0;
    uint32_t shape = 0;            // into shapes_
    uint32_t shard_and_dtype = 0;  // shard << 8 | dtype
  };
  struct Shape {
    uint32_t begin = 0;  // into extents_
    uint32_t rank = 0;
  };
  struct SortKey {
    uint64_t word = 0;  // eight characters of the name, big-endian, zeros behind its end
    uint32_t record = 0;
  };

  std::string_view name_of(const Record& record) const {
    return {names_.data() + record.name_begin, record.name_length};
  }
  uint32_t intern_shape(std::span<const int64_t> shape);
  void sort_keys(std::span<SortKey> keys, size_t depth) const;

  std::vector<char> names_;
  std::vector<Record> records_;
  std::vector<int64_t> extents_;
  std::vector<Shape> shapes_;
  std::unordered_map<uint64_t, uint32_t> shape_by_hash_;
};

}  // namespace tandem
