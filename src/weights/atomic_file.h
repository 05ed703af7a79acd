// weights/atomic_file.h: a file that appears complete or not at all: written under a temporary name in the folder of
// its final name, flushed to the disk, then renamed. Whatever ends it before publish() removes the temporary.
// Threading: write_at() from any thread, on disjoint ranges; everything else from the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem {

class AtomicFile {
 public:
  // Creates the temporary; an existing file at `path` stays as it is until publish(). A link is followed; a folder,
  // device or pipe is refused (kInvalidArgument).
  static Result<AtomicFile> create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  ~AtomicFile();

  // kResourceExhausted when the disk, the quota or the size limit is reached, kIo otherwise.
  Status write_at(uint64_t offset, std::span<const std::byte> bytes) const;
  // Sets the length; what is not written reads as zero and takes no space.
  Status resize(uint64_t bytes);
  // Takes the disk space of [0, bytes) so that a full disk is met here and not after minutes of writing.
  Status reserve(uint64_t bytes);
  // Flushes to the disk and closes. The data are safe, and not yet visible under their name.
  Status finish();
  // finish() if need be, then renames and flushes the folder.
  Status publish();

  const std::string& path() const { return path_; }
  bool is_published() const { return temporary_path_.empty(); }

 private:
  AtomicFile() = default;
  Status failure(std::string_view action, int error) const;

  std::string path_;
  std::string temporary_path_;  // empty: renamed, nothing to remove
  int fd_ = -1;
};

Status write_file_atomic(const std::string& path, std::string_view bytes);

// Makes the renames in a folder durable.
Status sync_folder(const std::string& dir);

}  // namespace tandem
