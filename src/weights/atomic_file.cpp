#include "weights/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/cat.h"
#include "base/check.h"

namespace tandem {
namespace {

constexpr int kMaxNameAttempts = 100;

bool is_space_error(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

Status AtomicFile::failure(std::string_view action, int error) const {
  std::string message = cat(path_, ": cannot ", action, ": ", std::strerror(error));
  return is_space_error(error) ? Status::exhausted(std::move(message)) : Status::io(std::move(message));
}

Result<AtomicFile> AtomicFile::create(const std::string& path) {
  AtomicFile file;
  // A rename would replace a link, a device or a pipe instead of writing through it: a link is followed to its file,
  // and what is no file is refused.
  std::error_code none;
  const auto target = std::filesystem::canonical(path, none);
  file.path_ = none ? path : target.string();
  if (!none && !std::filesystem::is_regular_file(target, none)) {
    return Status::invalid(cat(path, ": expected a new file or a regular file to replace, found something else"));
  }
  const size_t slash = file.path_.rfind('/');
  const std::string name = slash == std::string::npos ? file.path_ : file.path_.substr(slash + 1);
  if (name.empty()) return Status::invalid(cat(path, ": expected the name of a file"));
  int error = EEXIST;
  for (int attempt = 0; attempt < kMaxNameAttempts && error == EEXIST; ++attempt) {
    std::string temporary = cat(folder_of(file.path_), "/.", name, ".tmp-", ::getpid(), '-', attempt);
    file.fd_ = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    error = file.fd_ < 0 ? errno : 0;
    if (error == 0) file.temporary_path_ = std::move(temporary);
  }
  if (error != 0) return file.failure("create", error);
  return file;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept { *this = std::move(other); }

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(temporary_path_, other.temporary_path_);
  std::swap(fd_, other.fd_);
  return *this;
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_path_.empty()) ::unlink(temporary_path_.c_str());
}

Status AtomicFile::write_at(uint64_t offset, std::span<const std::byte> bytes) const {
  TANDEM_CHECK(fd_ >= 0, "the file is finished");
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      return failure(cat("write ", bytes.size(), " bytes at ", offset), errno);
    }
    if (written == 0) return failure(cat("write ", bytes.size(), " bytes at ", offset), ENOSPC);
    offset += static_cast<uint64_t>(written);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return Status::ok();
}

Status AtomicFile::resize(uint64_t bytes) {
  TANDEM_CHECK(fd_ >= 0, "the file is finished");
  if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) return failure(cat("extend to ", bytes, " bytes"), errno);
  return Status::ok();
}

Status AtomicFile::reserve(uint64_t bytes) {
  TANDEM_CHECK(fd_ >= 0, "the file is finished");
  int result = 0;
  do {
    result = bytes == 0 ? 0 : ::fallocate(fd_, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  // A file system without preallocation reports a full disk at the write instead.
  if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS) return failure(cat("reserve ", bytes, " bytes"), errno);
  return Status::ok();
}

Status AtomicFile::finish() {
  if (fd_ < 0) return Status::ok();
  if (::fsync(fd_) != 0) return failure("flush", errno);
  if (::close(std::exchange(fd_, -1)) != 0) return failure("close", errno);
  return Status::ok();
}

Status AtomicFile::publish() {
  TANDEM_RETURN_IF_ERROR(finish());
  TANDEM_CHECK(!temporary_path_.empty(), "a file is published once");
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0) return failure("rename the finished file", errno);
  temporary_path_.clear();
  return sync_folder(folder_of(path_));
}

Status write_file_atomic(const std::string& path, std::string_view bytes) {
  auto file = AtomicFile::create(path);
  if (!file.is_ok()) return file.status();
  TANDEM_RETURN_IF_ERROR(file.value().write_at(0, std::as_bytes(std::span(bytes))));
  return file.value().publish();
}

Status sync_folder(const std::string& dir) {
  const int fd = ::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Status::io(cat(dir, ": cannot open the folder: ", std::strerror(errno)));
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  // Some file systems cannot flush a folder and say so; their renames are as durable as they can be.
  if (error != 0 && error != EINVAL) return Status::io(cat(dir, ": cannot flush the folder: ", std::strerror(error)));
  return Status::ok();
}

}  // namespace tandem
