// weights/output_folder.h: several files that appear together: each is finished under a temporary name, commit()
// renames them all. Without a commit nothing stays, neither files nor the folders that were made for them.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "weights/atomic_file.h"

namespace tandem {

class OutputFolder {
 public:
  enum class Existing {
    kRefuse,     // the folder must be new or empty
    kOverwrite,  // files of the same names are replaced; other files stay
  };
  static Result<OutputFolder> create(const std::string& dir, Existing existing);
  OutputFolder(OutputFolder&&) noexcept = default;
  OutputFolder& operator=(OutputFolder&&) = delete;
  ~OutputFolder();

  // The file stays owned by the folder, at a stable address.
  Result<AtomicFile*> create_file(std::string_view name);
  Status write_file(std::string_view name, std::string_view bytes);
  // An existing file that would contradict the new ones; removed at commit.
  void remove_at_commit(std::string_view name) { stale_.push_back(path(name)); }
  Status commit();

  Result<uint64_t> free_bytes() const;
  const std::string& dir() const { return dir_; }
  std::vector<std::string> existing_names() const;

 private:
  OutputFolder() = default;
  std::string path(std::string_view name) const;

  std::string dir_;
  std::vector<std::string> made_dirs_;  // outermost first
  std::deque<AtomicFile> files_;
  std::vector<std::string> stale_;
  bool committed_ = false;
};

}  // namespace tandem
