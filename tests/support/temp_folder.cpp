#include "support/temp_folder.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "base/cat.h"
#include "base/check.h"

namespace tandem::test {

namespace fs = std::filesystem;

TempFolder::TempFolder() {
  std::string pattern = (fs::temp_directory_path() / "tandem-test-XXXXXX").string();
  TANDEM_CHECK(::mkdtemp(pattern.data()) != nullptr, "no temporary folder");
  root_ = pattern;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  fs::remove_all(root_, ignored);
}

std::string TempFolder::path(std::string_view name) const { return name.empty() ? root_ : cat(root_, "/", name); }

std::string TempFolder::write(std::string_view name, std::string_view bytes) const {
  std::string file = path(name);
  std::error_code ignored;
  fs::create_directories(fs::path(file).parent_path(), ignored);
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.flush();
  TANDEM_CHECK(out.good(), cat("cannot write ", file));
  return file;
}

}  // namespace tandem::test
