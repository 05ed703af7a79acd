// weights/checkpoint.h: a released-format checkpoint folder, opened in place: config.json's tensors in one
// `model.safetensors` or in shards under `model.safetensors.index.json`, memory-mapped, nothing converted.
//
//   open() reads the index and every shard header (simdjson), interns the names, and refuses with ONE Status that lists
//   every fault by name and shard: index and headers disagreeing in either direction, missing, truncated or overlapping
//   shards, `total_size` ≠ tensor bytes. Which tensors a model needs is weights/tensor_names.h's business.
//   Threading: immutable after open; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "weights/tensor_table.h"

namespace tandem {

class Checkpoint {
 public:
  enum class Mode {
    kMap,          // headers and data: tensors can be read
    kHeadersOnly,  // headers alone: data sections may be sparse, only sizes are checked
  };
  static Result<Checkpoint> open(const std::string& model_dir, Mode mode = Mode::kMap);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  int64_t num_tensors() const;
  TensorEntry tensor(int64_t i) const;                           // in name order
  std::optional<TensorEntry> find(std::string_view name) const;  // O(log n)
  // The tensor's bytes in the mapped file; kMap only. Safetensors aligns nothing: a tensor may begin at an odd address.
  std::span<const std::byte> data(const TensorEntry& entry) const;
  int64_t num_shards() const;
  std::string_view shard_name(uint32_t shard) const;
  std::string shard_path(uint32_t shard) const;
  // Where mapped bytes lie on disk; nothing for an address outside the shards. kMap only.
  struct FilePlace {
    uint32_t shard = 0;
    uint64_t offset = 0;  // from the beginning of the file
  };
  std::optional<FilePlace> place_of(const void* mapped) const;
  // The pages under these bytes may leave memory; reading them again reads the file again. Bytes that lie in no shard
  // are left alone. kMap only.
  void drop_pages(std::span<const std::byte> mapped) const;
  uint64_t total_bytes() const;  // tensor bytes over all shards
  uint64_t table_bytes() const;  // memory of the names, shapes and places
  const std::string& dir() const;

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
