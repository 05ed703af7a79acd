// tests/corpus/corpus_support.h: whole files, and the folder they lie in.
#pragma once

#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "support/temp_folder.h"

namespace tandem::test {

inline std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_bytes(const std::string& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace tandem::test
