#include "weights/checkpoint_hashes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>

#include "base/cat.h"
#include "base/read_file.h"
#include "weights/atomic_file.h"
#include "weights/shard_index.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxHashFileBytes = int64_t{64} << 20;
constexpr size_t kPieceBytes = size_t{4} << 20;
constexpr std::string_view kListNames[] = {kHashFileName, "SHA256SUMS.txt", "sha256sums.txt", "sha256sum.txt"};
constexpr std::string_view kHubFolder = ".cache/huggingface/download";

// 64 lower-case digits, or nothing.
std::string sha256_digits(std::string_view text) {
  if (text.size() != 64) return "";
  std::string hex(text);
  for (char& c : hex) {
    if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return "";
  }
  return hex;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class Finder {
 public:
  explicit Finder(const std::string& dir) : dir_(dir) {}

  ReferenceHashes find() {
    const std::vector<std::string> names = names_in(dir_);
    for (const std::string_view list : kListNames) {
      if (std::binary_search(names.begin(), names.end(), list)) read_list(std::string(list), "");
    }
    for (const std::string& name : names) {
      if (name.ends_with(".sha256")) read_list(name, name.substr(0, name.size() - 7));
    }
    read_hub_folder();
    for (const std::string& name : names) read_link(name);
    for (auto& [file, hash] : by_file_) found_.hashes.push_back(std::move(hash));
    return std::move(found_);
  }

 private:
  void add(std::string file, std::string hex, std::string source) {
    const auto [at, inserted] = by_file_.try_emplace(file, ReferenceHash{file, hex, source});
    if (inserted || at->second.hex == hex) return;
    found_.faults.push_back(cat(file, ": ", at->second.source, " and ", source, " state different hashes"));
  }

  // `alone`: the file that digits without a name are of; empty: a name is required.
  void read_list(const std::string& name, const std::string& alone) {
    const Result<std::string> text = read_file(cat(dir_, "/", name), "a file of hashes", kMaxHashFileBytes);
    if (!text.is_ok()) return found_.faults.push_back(text.status().message());
    std::istringstream lines(text.value());
    std::string line;
    for (int64_t number = 1; std::getline(lines, line); ++number) {
      while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
      if (line.empty() || line.front() == '#') continue;
      const size_t space = line.find(' ');
      const std::string hex = sha256_digits(std::string_view(line).substr(0, space));
      // The second character behind the digits is a space, or "*" for a file read as binary.
      std::string file = space == std::string::npos ? alone : line.substr(std::min(space + 2, line.size()));
      if (file.starts_with("./")) file.erase(0, 2);
      if (hex.empty() || !is_safe_shard_name(file)) {
        found_.faults.push_back(
            cat(name, " line ", number, ": expected 64 hexadecimal digits and the name of a file of the folder"));
        continue;
      }
      add(file, hex, name);
    }
  }

  void read_hub_folder() {
    const std::string folder = cat(dir_, "/", kHubFolder);
    for (const std::string& name : names_in(folder)) {
      if (name.ends_with(".incomplete")) found_.unfinished.push_back(cat(kHubFolder, "/", name));
      if (!name.ends_with(".metadata")) continue;
      const Result<std::string> text = read_file(cat(folder, "/", name), "download metadata", kMaxHashFileBytes);
      if (!text.is_ok()) continue;
      std::istringstream lines(text.value());
      std::string commit, etag;
      std::getline(lines, commit);
      std::getline(lines, etag);
      const std::string hex = sha256_digits(etag);
      if (!hex.empty()) add(name.substr(0, name.size() - 9), hex, cat(kHubFolder, "/", name));
    }
  }

  void read_link(const std::string& name) {
    std::error_code error;
    const fs::path target = fs::read_symlink(fs::path(dir_) / name, error);
    if (error || target.parent_path().filename() != "blobs") return;
    const std::string hex = sha256_digits(target.filename().string());
    if (!hex.empty()) add(name, hex, "the name of the blob it links to");
  }

  const std::string& dir_;
  std::map<std::string, ReferenceHash> by_file_;
  ReferenceHashes found_;
};

class OpenFile {
 public:
  explicit OpenFile(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~OpenFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

FileHash hash_file(const std::string& dir, const std::string& name, FunctionRef<bool(uint64_t)> read_bytes) {
  FileHash result{name, Status::ok(), ""};
  const std::string path = cat(dir, "/", name);
  const OpenFile file(path);
  if (file.fd() < 0) {
    result.status = Status::io(cat(path, ": cannot be opened: ", std::strerror(errno)));
    return result;
  }
  const auto piece = std::make_unique_for_overwrite<std::byte[]>(kPieceBytes);
  Sha256 hash;
  for (off_t at = 0;;) {
    const ssize_t count = ::read(file.fd(), piece.get(), kPieceBytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      result.status = Status::io(cat(path, ": cannot be read at byte ", at, ": ", std::strerror(errno)));
      return result;
    }
    if (count == 0) break;
    hash.add({piece.get(), static_cast<size_t>(count)});
    ::posix_fadvise(file.fd(), at, count, POSIX_FADV_DONTNEED);
    at += count;
    if (!read_bytes(static_cast<uint64_t>(count))) {
      result.status = Status(StatusCode::kCancelled, cat(path, ": hashing was stopped"));
      return result;
    }
  }
  result.hex = sha256_hex(hash.finish());
  return result;
}

}  // namespace

ReferenceHashes find_reference_hashes(const std::string& model_dir) { return Finder(model_dir).find(); }

Result<std::vector<std::string>> hashable_files(const std::string& model_dir) {
  std::error_code error;
  if (!fs::is_directory(model_dir, error)) return Status::not_found(cat(model_dir, ": no such folder"));
  std::vector<std::string> files;
  for (const std::string& name : names_in(model_dir)) {
    const bool is_list = std::ranges::find(kListNames, name) != std::end(kListNames) || name.ends_with(".sha256");
    if (name.starts_with(".") || is_list || !fs::is_regular_file(fs::path(model_dir) / name, error)) continue;
    files.push_back(name);
  }
  return files;
}

std::vector<FileHash> hash_files(const std::string& dir, const std::vector<std::string>& files, ThreadPool& pool,
                                 FunctionRef<void(uint64_t done_bytes, uint64_t total_bytes)> progress,
                                 const std::atomic<bool>* cancel) {
  uint64_t total = 0;
  for (const std::string& file : files) {
    std::error_code error;
    const uintmax_t size = fs::file_size(fs::path(dir) / file, error);
    if (!error) total += size;
  }
  std::vector<FileHash> hashes(files.size());
  std::mutex mu;  // guards done and the progress line
  uint64_t done = 0;
  pool.parallel_for(static_cast<int64_t>(files.size()), [&](int64_t i, int) {
    hashes[static_cast<size_t>(i)] = hash_file(dir, files[static_cast<size_t>(i)], [&](uint64_t count) {
      const std::lock_guard lock(mu);
      done += count;
      progress(done, total);
      return cancel == nullptr || !cancel->load();
    });
  });
  return hashes;
}

Status write_hash_file(const std::string& model_dir, const std::vector<FileHash>& hashes) {
  const std::string path = cat(model_dir, "/", kHashFileName);
  std::error_code error;
  if (fs::exists(path, error)) {
    return Status::failed_precondition(cat(path, ": is there already; remove it to write a new one"));
  }
  std::string text;
  for (const FileHash& hash : hashes) {
    TANDEM_RETURN_IF_ERROR(hash.status);
    text += cat(hash.hex, "  ", hash.file, "\n");
  }
  return write_file_atomic(path, text);
}

}  // namespace tandem
