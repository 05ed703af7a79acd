#include "weights/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/cat.h"

namespace tandem {
namespace {

uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }
constexpr uintptr_t kFaultBytes = 65536;  // mapped by one fault, where the file is in the page cache (the default)
uint64_t page_bytes() { return static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); }

struct FileDescriptor {
  int value = -1;
  ~FileDescriptor() {
    if (value >= 0) ::close(value);
  }
};

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path, uint64_t limit_bytes) {
  // O_NONBLOCK: opening a pipe must not wait for a writer; it is refused below.
  const FileDescriptor fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (fd.value < 0) {
    const int error = errno;
    std::string message = cat(path, ": cannot open: ", std::strerror(error));
    return error == ENOENT ? Status::not_found(std::move(message)) : Status::io(std::move(message));
  }
  struct stat info = {};
  if (::fstat(fd.value, &info) != 0) return Status::io(cat(path, ": cannot stat: ", std::strerror(errno)));
  if (!S_ISREG(info.st_mode)) return Status::io(cat(path, ": expected a regular file"));

  MappedFile file;
  file.file_bytes_ = static_cast<uint64_t>(info.st_size);
  file.mapped_bytes_ = std::min(file.file_bytes_, limit_bytes);
  file.reserved_bytes_ = round_up(file.mapped_bytes_ + kPadding, page_bytes());
  // Zero pages first, the file over them: behind the last page of the file the padding is still readable.
  void* base = ::mmap(nullptr, file.reserved_bytes_, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return Status::exhausted(
        cat(path, ": cannot reserve ", file.reserved_bytes_, " bytes of address space: ", std::strerror(errno)));
  }
  file.base_ = static_cast<const std::byte*>(base);
  if (file.mapped_bytes_ > 0 &&
      ::mmap(base, file.mapped_bytes_, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd.value, 0) == MAP_FAILED) {
    return Status::io(cat(path, ": cannot map ", file.mapped_bytes_, " bytes: ", std::strerror(errno)));
  }
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(reserved_bytes_, other.reserved_bytes_);
  std::swap(file_bytes_, other.file_bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (base_ != nullptr) ::munmap(const_cast<std::byte*>(base_), reserved_bytes_);
}

void MappedFile::drop_pages(uint64_t begin, uint64_t count) const {
  const auto base = reinterpret_cast<uintptr_t>(base_);
  const uintptr_t last = base + std::min(begin + count, mapped_bytes_);
  // From the window on that a fault maps around a page: it brought back what of it was dropped before.
  const uintptr_t first = std::max((base + begin) / kFaultBytes * kFaultBytes, base);
  if (base_ == nullptr || first >= last) return;
  // Advice: a refusal costs memory, not correctness.
  (void)::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace tandem
