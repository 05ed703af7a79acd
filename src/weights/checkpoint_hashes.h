// weights/checkpoint_hashes.h: SHA-256 of a checkpoint's files: what the folder says they must be, and what they are.
//
//   References, in this order (the first that names a file counts):
//     SHA256SUMS, sha256sums.txt, SHA256SUMS.txt         "<hex>  <file>", a line each, as sha256sum writes
//     <file>.sha256                                      the same, or the digits alone
//     .cache/huggingface/download/<file>.metadata        second line: the etag, SHA-256 of a large file
//     a link to …/blobs/<hex>                            the same, in the hub's cache folder
//   An etag of 40 digits is a Git hash of a small file, not a SHA-256; such a file has no reference.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/result.h"
#include "base/sha256.h"
#include "base/thread_pool.h"

namespace tandem {

inline constexpr std::string_view kHashFileName = "SHA256SUMS";

struct ReferenceHash {
  std::string file;  // in the folder
  std::string hex;   // 64 lower-case digits
  std::string source;
};
struct ReferenceHashes {
  std::vector<ReferenceHash> hashes;    // by file name, each file once
  std::vector<std::string> faults;      // lines that are none, contradictions; each with its source
  std::vector<std::string> unfinished;  // downloads that did not end (*.incomplete)
};
ReferenceHashes find_reference_hashes(const std::string& model_dir);

// Regular files of the folder that belong to the checkpoint, by name: not hidden, no hash files.
Result<std::vector<std::string>> hashable_files(const std::string& model_dir);

struct FileHash {
  std::string file;
  Status status;  // of reading it
  std::string hex;
};
// A file is one task of the pool. `progress` is told the bytes read now and then, by one thread at a time. What is read
// does not stay in the page cache. `cancel` may be null; kCancelled for files that were not finished then.
std::vector<FileHash> hash_files(const std::string& dir, const std::vector<std::string>& files, ThreadPool& pool,
                                 FunctionRef<void(uint64_t done_bytes, uint64_t total_bytes)> progress,
                                 const std::atomic<bool>* cancel);

// The folder's SHA256SUMS, whole or not at all. kFailedPrecondition when there is one.
Status write_hash_file(const std::string& model_dir, const std::vector<FileHash>& hashes);

}  // namespace tandem
