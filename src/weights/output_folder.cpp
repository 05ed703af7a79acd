#include "weights/output_folder.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/cat.h"
#include "base/check.h"

namespace tandem {
namespace {

bool is_space_error(int error) { return error == ENOSPC || error == EDQUOT; }

// Makes `dir` and what is missing above it; adds what it made to `made`, outermost first.
Status make_dirs(const std::string& dir, std::vector<std::string>& made) {
  for (size_t end = dir.find('/', 1);; end = dir.find('/', end + 1)) {
    const std::string part = dir.substr(0, end);
    if (::mkdir(part.c_str(), 0777) == 0) {
      made.push_back(part);
    } else if (errno != EEXIST) {
      const int error = errno;
      std::string message = cat(part, ": cannot create the folder: ", std::strerror(error));
      return is_space_error(error) ? Status::exhausted(std::move(message)) : Status::io(std::move(message));
    }
    if (end == std::string::npos) return Status::ok();
  }
}

std::vector<std::string> names_in(const std::string& dir) {
  std::vector<std::string> names;
  DIR* handle = ::opendir(dir.c_str());
  if (handle == nullptr) return names;
  while (const dirent* item = ::readdir(handle)) {
    const std::string_view name = item->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  ::closedir(handle);
  std::ranges::sort(names);
  return names;
}

}  // namespace

std::string OutputFolder::path(std::string_view name) const { return cat(dir_, "/", name); }
std::vector<std::string> OutputFolder::existing_names() const { return names_in(dir_); }

Result<OutputFolder> OutputFolder::create(const std::string& dir, Existing existing) {
  OutputFolder folder;
  folder.dir_ = dir;
  while (folder.dir_.size() > 1 && folder.dir_.back() == '/') folder.dir_.pop_back();
  if (folder.dir_.empty()) return Status::invalid("the output folder has no name");
  TANDEM_RETURN_IF_ERROR(make_dirs(folder.dir_, folder.made_dirs_));
  struct stat info = {};
  if (::stat(folder.dir_.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return Status::invalid(cat(folder.dir_, ": expected a folder, found a file"));
  }
  const std::vector<std::string> names = names_in(folder.dir_);
  if (existing == Existing::kRefuse && !names.empty()) {
    return Status::failed_precondition(cat(folder.dir_, ": expected a new or empty folder, found ", names.size(),
                                           " files in it (", names[0], names.size() > 1 ? ", …)" : ")"));
  }
  return folder;
}

OutputFolder::~OutputFolder() {
  if (committed_) return;
  for (const AtomicFile& file : files_) {
    if (file.is_published()) ::unlink(file.path().c_str());
  }
  files_.clear();  // removes the temporaries
  for (size_t i = made_dirs_.size(); i-- > 0;) ::rmdir(made_dirs_[i].c_str());
}

Result<AtomicFile*> OutputFolder::create_file(std::string_view name) {
  auto file = AtomicFile::create(path(name));
  if (!file.is_ok()) return file.status();
  files_.push_back(std::move(file).value());
  return &files_.back();
}

Status OutputFolder::write_file(std::string_view name, std::string_view bytes) {
  auto file = create_file(name);
  if (!file.is_ok()) return file.status();
  TANDEM_RETURN_IF_ERROR(file.value()->write_at(0, std::as_bytes(std::span(bytes))));
  return file.value()->finish();
}

Status OutputFolder::commit() {
  TANDEM_CHECK(!committed_, "a folder is committed once");
  for (AtomicFile& file : files_) TANDEM_RETURN_IF_ERROR(file.finish());
  for (AtomicFile& file : files_) TANDEM_RETURN_IF_ERROR(file.publish());
  for (const std::string& stale : stale_) {
    if (::unlink(stale.c_str()) != 0 && errno != ENOENT) {
      return Status::io(cat(stale, ": cannot remove the file of an earlier checkpoint: ", std::strerror(errno)));
    }
  }
  committed_ = true;
  return sync_folder(dir_);
}

Result<uint64_t> OutputFolder::free_bytes() const {
  struct statvfs info = {};
  if (::statvfs(dir_.c_str(), &info) != 0) {
    return Status::io(cat(dir_, ": cannot read the free disk space: ", std::strerror(errno)));
  }
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace tandem
