#include "weights/tensor_table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"

namespace tandem {
namespace {

// The shortest entry of a safetensors header: "":{"dtype":"U8","shape":[],"data_offsets":[0,0]},
constexpr uint64_t kMinEntryBytes = 50;

uint64_t word_at(std::string_view name, size_t depth) {
  uint64_t word = 0;
  if (depth + 8 <= name.size()) {
    std::memcpy(&word, name.data() + depth, 8);
    return std::endian::native == std::endian::little ? __builtin_bswap64(word) : word;
  }
  for (size_t i = 0; i < 8; ++i) {
    const uint64_t character = depth + i < name.size() ? static_cast<unsigned char>(name[depth + i]) : 0;
    word = word << 8 | character;
  }
  return word;
}

}  // namespace

std::optional<uint64_t> tensor_num_bytes(DType dtype, std::span<const int64_t> shape) {
  int64_t bytes = dtype_size(dtype);
  bool overflow = false;
  for (const int64_t extent : shape) {
    if (extent == 0) return 0;
    overflow = overflow || __builtin_mul_overflow(bytes, extent, &bytes);
  }
  if (overflow) return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

void TensorTable::reserve(uint64_t header_bytes) {
  names_.reserve(header_bytes);
  records_.reserve(header_bytes / kMinEntryBytes + 1);
}

void TensorTable::add(std::string_view name, DType dtype, std::span<const int64_t> shape, uint32_t shard,
                      uint64_t begin) {
  TANDEM_CHECK(shard < kMaxShards, "shard numbers have 24 bits");
  TANDEM_CHECK(names_.size() + name.size() <= std::numeric_limits<uint32_t>::max(), "names have 4 GiB in all");
  Record record;
  record.begin = begin;
  record.name_begin = static_cast<uint32_t>(names_.size());
  record.name_length = static_cast<uint32_t>(name.size());
  record.shape = intern_shape(shape);
  record.shard_and_dtype = shard << 8 | static_cast<uint32_t>(dtype);
  names_.insert(names_.end(), name.begin(), name.end());
  records_.push_back(record);
}

uint32_t TensorTable::intern_shape(std::span<const int64_t> shape) {
  uint64_t hash = shape.size();
  for (const int64_t extent : shape) hash = (hash ^ static_cast<uint64_t>(extent)) * 0x9e3779b97f4a7c15u;
  const auto found = shape_by_hash_.find(hash);
  if (found != shape_by_hash_.end()) {
    const Shape known = shapes_[found->second];
    if (std::ranges::equal(std::span(extents_).subspan(known.begin, known.rank), shape)) return found->second;
  }
  const auto id = static_cast<uint32_t>(shapes_.size());
  shapes_.push_back({static_cast<uint32_t>(extents_.size()), static_cast<uint32_t>(shape.size())});
  extents_.insert(extents_.end(), shape.begin(), shape.end());
  shape_by_hash_.emplace(hash, id);  // of two shapes with one hash the second is stored each time: correct, larger
  return id;
}

TensorEntry TensorTable::entry(int64_t i) const {
  const Record& record = records_[static_cast<size_t>(i)];
  const Shape shape = shapes_[record.shape];
  TensorEntry entry;
  entry.name = name_of(record);
  entry.dtype = static_cast<DType>(record.shard_and_dtype & 0xff);
  entry.shape = std::span(extents_).subspan(shape.begin, shape.rank);
  entry.shard = record.shard_and_dtype >> 8;
  entry.begin = record.begin;
  entry.num_bytes = tensor_num_bytes(entry.dtype, entry.shape).value_or(0);
  return entry;
}

// Released names share prefixes of 30 to 60 characters, which a comparison sort reads again and again. This sorts by
// eight characters at a time and descends into runs of equal words (multikey quicksort: Bentley and Sedgewick, 1997).
void TensorTable::sort_keys(std::span<SortKey> keys, size_t depth) const {
  constexpr size_t kSmall = 16;
  while (keys.size() > kSmall) {
    bool all_equal = true;
    bool any_left = false;
    for (SortKey& key : keys) {
      const std::string_view name = name_of(records_[key.record]);
      key.word = word_at(name, depth);
      all_equal = all_equal && key.word == keys[0].word;
      any_left = any_left || name.size() > depth + 8;
    }
    if (all_equal && any_left) {
      depth += 8;
      continue;
    }
    if (all_equal) break;  // equal but for characters of value zero at the end
    std::ranges::sort(keys, {}, &SortKey::word);
    for (size_t begin = 0; begin < keys.size();) {
      size_t end = begin + 1;
      while (end < keys.size() && keys[end].word == keys[begin].word) ++end;
      if (end - begin > 1) sort_keys(keys.subspan(begin, end - begin), depth + 8);
      begin = end;
    }
    return;
  }
  std::ranges::sort(keys, [this](const SortKey& a, const SortKey& b) {
    const auto order = name_of(records_[a.record]).compare(name_of(records_[b.record]));
    return order != 0 ? order < 0 : a.record < b.record;
  });
}

void TensorTable::sort_by_name() {
  std::vector<SortKey> keys(records_.size());
  for (size_t i = 0; i < keys.size(); ++i) keys[i].record = static_cast<uint32_t>(i);
  sort_keys(keys, 0);
  std::vector<Record> sorted;
  sorted.reserve(records_.size());
  for (const SortKey& key : keys) sorted.push_back(records_[key.record]);
  records_ = std::move(sorted);
}

uint64_t TensorTable::used_bytes() const {
  constexpr uint64_t kMapNodeBytes = 32;
  return names_.size() + records_.size() * sizeof(Record) + extents_.size() * sizeof(int64_t) +
         shapes_.size() * (sizeof(Shape) + kMapNodeBytes);
}

std::optional<int64_t> TensorTable::find(std::string_view wanted, int64_t hint) const {
  if (hint >= 0 && hint < size() && name(hint) == wanted) return hint;
  const auto found =
      std::lower_bound(records_.begin(), records_.end(), wanted,
                       [this](const Record& record, std::string_view target) { return name_of(record) < target; });
  if (found == records_.end() || name_of(*found) != wanted) return std::nullopt;
  return found - records_.begin();
}

}  // namespace tandem
