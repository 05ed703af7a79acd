// tests/support/temp_folder.h: a folder of a test's own, removed at its end with everything in it.
#pragma once

#include <string>
#include <string_view>

namespace tandem::test {

class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string path(std::string_view name = "") const;  // of the folder, or of what is in it
  // Folders on the way to the file are made; its path.
  std::string write(std::string_view name, std::string_view bytes) const;

 private:
  std::string root_;
};

}  // namespace tandem::test
