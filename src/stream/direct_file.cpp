#include "stream/direct_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "base/cat.h"

namespace tandem {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Some file systems accept O_DIRECT when opening and refuse it when reading, or want larger blocks than ours.
bool reads_directly(int fd) {
  const std::unique_ptr<void, Free> block(std::aligned_alloc(kDirectAlignment, kDirectAlignment));
  if (block == nullptr) return false;
  ssize_t got = -1;
  do {
    got = ::pread(fd, block.get(), kDirectAlignment, 0);
  } while (got < 0 && errno == EINTR);
  return got >= 0 || errno != EINVAL;
}

}  // namespace

Result<DirectFile> DirectFile::open(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait for a writer; it is refused below.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  DirectFile file;
  file.path = path;
  file.fd = ::open(path.c_str(), kFlags | O_DIRECT);
  file.direct = file.fd >= 0 && reads_directly(file.fd);
  if (!file.direct && (file.fd >= 0 || errno == EINVAL)) {
    if (file.fd >= 0) ::close(file.fd);
    file.fd = ::open(path.c_str(), kFlags);
  }
  if (file.fd < 0) {
    const int error = errno;
    std::string message = cat(path, ": cannot open: ", std::strerror(error));
    return error == ENOENT ? Status::not_found(std::move(message)) : Status::io(std::move(message));
  }
  struct stat info = {};
  if (::fstat(file.fd, &info) != 0) return Status::io(cat(path, ": cannot stat: ", std::strerror(errno)));
  if (!S_ISREG(info.st_mode)) return Status::io(cat(path, ": expected a regular file"));
  file.size_bytes = static_cast<uint64_t>(info.st_size);
  file.device = info.st_dev;
  return file;
}

DirectFile::DirectFile(DirectFile&& other) noexcept { *this = std::move(other); }

DirectFile& DirectFile::operator=(DirectFile&& other) noexcept {
  std::swap(path, other.path);
  std::swap(fd, other.fd);
  std::swap(size_bytes, other.size_bytes);
  std::swap(device, other.device);
  std::swap(direct, other.direct);
  return *this;
}

DirectFile::~DirectFile() {
  if (fd >= 0) ::close(fd);
}

}  // namespace tandem
