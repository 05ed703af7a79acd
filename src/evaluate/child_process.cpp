#include "evaluate/child_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/cat.h"

extern char** environ;

namespace tandem {
namespace {

Status failure(std::string_view program, std::string_view action, int error) {
  return Status::io(cat(program, ": cannot ", action, ": ", std::strerror(error)));
}

// An anonymous file in memory; closed by other programs of this process.
class MemoryFile {
 public:
  explicit MemoryFile(const char* name) : fd_(::memfd_create(name, MFD_CLOEXEC)) {}
  ~MemoryFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  int fd() const { return fd_; }

  // From the beginning; 0 or an errno.
  int write(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = ::write(fd_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return errno;
      bytes.remove_prefix(static_cast<size_t>(count));
    }
    return ::lseek(fd_, 0, SEEK_SET) < 0 ? errno : 0;
  }
  int read(std::string& out) const {
    struct stat info = {};
    if (::fstat(fd_, &info) != 0) return errno;
    out.resize(static_cast<size_t>(info.st_size));
    for (size_t done = 0; done < out.size();) {
      const ssize_t count = ::pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(done));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return count < 0 ? errno : EIO;
      done += static_cast<size_t>(count);
    }
    return 0;
  }

 private:
  int fd_;
};

}  // namespace

Result<ChildResult> run_child(const std::vector<std::string>& words, std::string_view input) {
  TANDEM_CHECK(!words.empty(), "a child process has a program");
  const std::string& program = words[0];
  const MemoryFile in("stdin"), out("stdout"), err("stderr");
  if (in.fd() < 0 || out.fd() < 0 || err.fd() < 0) return failure(program, "make its files", errno);
  if (const int error = in.write(input); error != 0) return failure(program, "prepare its input", error);

  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in.fd(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out.fd(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, err.fd(), STDERR_FILENO);
  pid_t child = 0;
  const int spawned = ::posix_spawnp(&child, program.c_str(), &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (spawned == ENOENT) return Status::not_found(cat(program, ": no such program in PATH"));
  if (spawned != 0) return failure(program, "start it", spawned);

  int state = 0;
  while (::waitpid(child, &state, 0) < 0) {
    if (errno != EINTR) return failure(program, "wait for it", errno);
  }
  ChildResult result;
  result.exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  if (const int error = out.read(result.out); error != 0) return failure(program, "read its output", error);
  if (const int error = err.read(result.err); error != 0) return failure(program, "read its messages", error);
  return result;
}

}  // namespace tandem
