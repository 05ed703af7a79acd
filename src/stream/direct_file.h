// stream/direct_file.h: a file opened for block reads, past the page cache where its file system lets it.
// Threading: immutable after open.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace tandem {

// Of offsets, lengths and memory: the largest logical block of a drive and a page of memory.
inline constexpr uint64_t kDirectAlignment = 4096;

constexpr uint64_t direct_floor(uint64_t bytes) { return bytes / kDirectAlignment * kDirectAlignment; }
constexpr uint64_t direct_ceil(uint64_t bytes) { return direct_floor(bytes + kDirectAlignment - 1); }

struct DirectFile {
  std::string path;
  int fd = -1;
  uint64_t size_bytes = 0;
  uint64_t device = 0;  // which drive: two files with the same number share one
  bool direct = false;  // O_DIRECT; else the page cache is used

  // kNotFound, or kIo for what is no readable regular file.
  static Result<DirectFile> open(const std::string& path);
  DirectFile() = default;
  DirectFile(DirectFile&& other) noexcept;
  DirectFile& operator=(DirectFile&& other) noexcept;
  ~DirectFile();
};

}  // namespace tandem
