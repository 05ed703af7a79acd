// tests/weights/raw_checkpoint.h: checkpoint folders written byte by byte, so that every fault can be made by hand.
// Shares nothing with src/weights.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "support/temp_folder.h"

namespace tandem::test {

inline void write_raw(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.good()) << path;
}

inline std::string length_prefix(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 0xff);
  return bytes;
}

// A whole safetensors file: prefix, header as given, data.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  return length_prefix(header.size()) + header + data;
}

inline std::string entry(const std::string& name, const std::string& dtype, const std::string& shape, uint64_t begin,
                         uint64_t end) {
  std::string json = "\"";
  json.append(name).append("\":{\"dtype\":\"").append(dtype).append("\",\"shape\":").append(shape);
  json.append(",\"data_offsets\":[").append(std::to_string(begin)).append(",").append(std::to_string(end)).append("]}");
  return json;
}

inline std::string object(const std::vector<std::string>& entries) {
  std::string json = "{";
  for (const std::string& item : entries) {
    if (json.size() > 1) json += ',';
    json += item;
  }
  return json + "}";
}

}  // namespace tandem::test
