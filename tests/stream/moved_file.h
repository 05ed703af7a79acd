// tests/stream/moved_file.h: a checkpoint whose tensors lie at other addresses, allowed by their types or not.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "model/random_model.h"

namespace tandem::test {

inline std::string file_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
}

// The folder's one file with a header that is longer by so many spaces: every tensor moves.
inline void write_moved(const RandomModel& model, const std::string& dir, uint64_t by) {
  const Result<Checkpoint> checkpoint = Checkpoint::open(model.dir());
  ASSERT_TRUE(checkpoint.is_ok());
  ASSERT_EQ(checkpoint.value().num_shards(), 1);
  const std::string bytes = file_bytes(checkpoint.value().shard_path(0));
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  const uint64_t longer = length + by;
  std::string moved(reinterpret_cast<const char*>(&longer), sizeof(longer));
  moved += bytes.substr(sizeof(length), length) + std::string(by, ' ') + bytes.substr(sizeof(length) + length);
  std::filesystem::copy_file(model.dir() + "/config.json", dir + "/config.json");
  std::ofstream out(dir + "/model.safetensors", std::ios::binary);
  out << moved;
}

}  // namespace tandem::test
