// The hashes of a checkpoint's files against what the folder says they must be.
#include <algorithm>
#include <chrono>

#include "base/cat.h"
#include "engine/doctor/checkpoint_checks.h"
#include "engine/doctor/size_words.h"
#include "weights/checkpoint_hashes.h"

namespace tandem {
namespace {

void check_downloads(const ReferenceHashes& references, TellCheck tell) {
  DoctorCheck check{.area = "checkpoint", .name = "downloads"};
  check.details = references.unfinished;
  if (references.unfinished.empty()) {
    check.message = "no unfinished download";
  } else {
    check.verdict = Verdict::kWarning;
    check.message = cat(references.unfinished.size(), " downloads did not end; a file may be missing or old");
  }
  tell(std::move(check));
}

class HashCheck {
 public:
  HashCheck(const std::string& dir, const HashOptions& options, ReferenceHashes references)
      : dir_(dir), options_(options), references_(std::move(references)) {
    check_.values = {{"references", static_cast<int64_t>(references_.hashes.size())}};
    for (const std::string& fault : references_.faults) fail(fault);
  }

  DoctorCheck run(ThreadPool& pool, FunctionRef<void(const std::string&)> progress) {
    const Result<std::vector<std::string>> files = hashable_files(dir_);
    if (!files.is_ok()) {
      fail(files.status().message());
      return conclude("the files cannot be listed");
    }
    files_ = files.value();
    for (const ReferenceHash& reference : references_.hashes) {
      if (std::ranges::find(files_, reference.file) == files_.end()) {
        fail(cat(reference.file, ": named by ", reference.source, " and not in the folder"));
      }
    }
    if (!options_.compute && !options_.write) return conclude_uncomputed();
    if (references_.hashes.empty() && !options_.write) return conclude_uncomputed();
    const std::vector<FileHash> hashes = hash_files(
        dir_, files_, pool,
        [&](uint64_t done, uint64_t total) { progress(cat("hashed ", bytes_text(done), " of ", bytes_text(total))); },
        options_.cancel);
    const int64_t equal = compare(hashes);
    std::string written;
    if (options_.write) {
      const Status status = write_hash_file(dir_, hashes);
      if (!status.is_ok()) fail(status.message());
      written = status.is_ok() ? cat("; wrote ", kHashFileName, " of ", hashes.size(), " files") : "";
    }
    check_.values.emplace_back("equal", equal);
    check_.values.emplace_back("files", static_cast<int64_t>(hashes.size()));
    if (references_.hashes.empty()) return conclude(cat("there was nothing to compare with", written));
    return conclude(cat(equal, " of ", references_.hashes.size(), " files with a reference have its SHA-256", written));
  }

 private:
  void fail(std::string detail) {
    check_.verdict = Verdict::kFailed;
    check_.details.push_back(std::move(detail));
  }
  DoctorCheck conclude(std::string message) {
    check_.message = std::move(message);
    return std::move(check_);
  }
  DoctorCheck conclude_uncomputed() {
    if (check_.verdict == Verdict::kOk) check_.verdict = Verdict::kSkipped;
    if (references_.hashes.empty()) {
      return conclude(cat("there is nothing to compare with: no ", kHashFileName, ", *.sha256 or download metadata; ",
                          "--write-hashes writes what the files are now"));
    }
    return conclude(cat(references_.hashes.size(), " of ", files_.size(),
                        " files have a reference; --hash reads them and compares"));
  }

  int64_t compare(const std::vector<FileHash>& hashes) {
    int64_t equal = 0;
    for (const FileHash& hash : hashes) {
      if (!hash.status.is_ok()) {
        fail(hash.status.message());
        continue;
      }
      const auto reference = std::ranges::find(references_.hashes, hash.file, &ReferenceHash::file);
      if (reference == references_.hashes.end()) continue;
      if (reference->hex == hash.hex) {
        ++equal;
      } else {
        fail(cat(hash.file, ": SHA-256 is ", hash.hex, ", ", reference->source, " states ", reference->hex,
                 ": load it again"));
      }
    }
    return equal;
  }

  const std::string& dir_;
  const HashOptions& options_;
  const ReferenceHashes references_;
  std::vector<std::string> files_;
  DoctorCheck check_{.area = "checkpoint", .name = "hashes"};
};

}  // namespace

void check_hashes(const std::string& model_dir, const HashOptions& options, ThreadPool& pool, TellCheck tell,
                  FunctionRef<void(const std::string&)> progress) {
  ReferenceHashes references = find_reference_hashes(model_dir);
  check_downloads(references, tell);
  tell(HashCheck(model_dir, options, std::move(references)).run(pool, progress));
}

}  // namespace tandem
