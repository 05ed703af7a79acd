// weights/mapped_file.h: a file mapped for reading, private, with kPadding readable bytes behind its end (simdjson
// reads whole vectors). A file that another process shortens while it is mapped ends the program with SIGBUS.
// Threading: immutable after open; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "base/result.h"

namespace tandem {

class MappedFile {
 public:
  static constexpr size_t kPadding = 64;
  static constexpr uint64_t kWholeFile = std::numeric_limits<uint64_t>::max();

  // Maps the first `limit_bytes` of the file, or all of it when it is shorter. kNotFound when there is no such file.
  static Result<MappedFile> open(const std::string& path, uint64_t limit_bytes = kWholeFile);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {base_, static_cast<size_t>(mapped_bytes_)}; }
  uint64_t file_bytes() const { return file_bytes_; }

  // The pages of [begin, begin + count) may leave memory; reading them again reads the file again.
  void drop_pages(uint64_t begin, uint64_t count) const;

 private:
  const std::byte* base_ = nullptr;
  uint64_t mapped_bytes_ = 0;
  uint64_t reserved_bytes_ = 0;  // length of the address range, whole pages
  uint64_t file_bytes_ = 0;
};

}  // namespace tandem
