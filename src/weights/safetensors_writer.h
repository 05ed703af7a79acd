// weights/safetensors_writer.h: writes safetensors files. Tensors are laid out by falling element size (F32 before BF16
// before U8), in the caller's order within a size, behind a header padded to 8 bytes: every element is aligned.
// Source: the safetensors format description.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/dtype.h"
#include "weights/atomic_file.h"

namespace tandem {

struct TensorSpec {
  std::string_view name;
  DType dtype = DType::kF32;
  std::span<const int64_t> shape;
};

// Where one file's parts go.
struct SafetensorsLayout {
  std::string front;                // length prefix and padded header
  std::vector<uint64_t> begin;      // of each tensor, in bytes from the start of the file, in the caller's order
  std::vector<uint64_t> num_bytes;  // of each tensor
  uint64_t file_bytes = 0;
};

// kInvalidArgument: a duplicate, empty or reserved name, a name that is not UTF-8, a negative extent, too large a
// shape.
Result<SafetensorsLayout> layout_safetensors(std::span<const TensorSpec> tensors);

// Streams one file: create() writes the header, write() may be called in any order and from any thread.
class SafetensorsWriter {
 public:
  // `file` outlives the writer and is published by its owner after finish().
  static Result<SafetensorsWriter> create(AtomicFile& file, std::span<const TensorSpec> tensors);

  // Bytes [offset, offset + bytes.size()) of tensor i; ranges do not overlap.
  Status write(size_t tensor, uint64_t offset, std::span<const std::byte> bytes);
  // kFailedPrecondition when fewer bytes were written than the tensors have.
  Status finish();

 private:
  SafetensorsWriter(AtomicFile& file, SafetensorsLayout layout);
  AtomicFile* file_;
  SafetensorsLayout layout_;
  std::unique_ptr<std::atomic<uint64_t>> written_bytes_;  // on the heap: the writer moves
};

struct TensorToWrite {
  TensorSpec spec;
  std::span<const std::byte> bytes;
};

// A whole file from memory, atomically.
Status write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors);

// `text` as a JSON string with its quotes.
void append_json_string(std::string& out, std::string_view text);

}  // namespace tandem
