#include "base/read_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/cat.h"

namespace tandem {

Result<std::string> read_file(const std::string& path, std::string_view what, int64_t max_bytes) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    return Status::not_found(cat(path, ": expected ", what, ": no such file"));
  }
  if (error) return Status::io(cat(path, ": expected ", what, ": ", error.message()));
  if (!fs::is_regular_file(status)) {
    return Status::invalid(cat(path, ": expected ", what, ", found something that is not a regular file"));
  }
  const uintmax_t size = fs::file_size(path, error);
  if (error) return Status::io(cat(path, ": ", error.message()));
  if (size > static_cast<uintmax_t>(max_bytes)) {
    return Status::invalid(cat(path, ": expected ", what, " of at most ", max_bytes, " bytes, found ", size));
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) return Status::io(cat(path, ": cannot be opened: ", std::strerror(errno)));
  std::string text(static_cast<size_t>(size), '\0');
  in.read(text.data(), static_cast<std::streamsize>(size));
  if (in.gcount() != static_cast<std::streamsize>(size)) {
    return Status::io(cat(path, ": read ", in.gcount(), " of ", size, " bytes"));
  }
  return text;
}

}  // namespace tandem
