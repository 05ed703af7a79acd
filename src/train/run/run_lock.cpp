#include "train/run/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/cat.h"

namespace tandem::train {

Result<RunLock> RunLock::take(const std::string& run_dir) {
  RunLock lock;
  std::error_code error;
  const bool made = std::filesystem::create_directories(run_dir, error);
  if (error) return Status::io(cat(run_dir, ": cannot make the run's folder: ", error.message()));
  if (made) lock.made_ = run_dir;
  lock.fd_ = ::open(run_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock.fd_ < 0) return Status::io(cat(run_dir, ": cannot open the run's folder: ", std::strerror(errno)));
  if (::flock(lock.fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Status::failed_precondition(cat(run_dir, ": another process is training in this folder"));
  }
  return lock;
}

RunLock::RunLock(RunLock&& other) noexcept { *this = std::move(other); }

RunLock& RunLock::operator=(RunLock&& other) noexcept {
  std::swap(made_, other.made_);
  std::swap(fd_, other.fd_);
  return *this;
}

RunLock::~RunLock() {
  if (fd_ >= 0) ::close(fd_);
  if (!made_.empty()) ::rmdir(made_.c_str());  // fails where there is a file
}

}  // namespace tandem::train
