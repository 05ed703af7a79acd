// tests/engine/poisoned_model.h: a copy of a golden model in which the embedding of one token is not a number.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/cat.h"
#include "base/check.h"
#include "support/golden.h"
#include "support/temp_folder.h"

namespace tandem::test {

class PoisonedModel {
 public:
  // `model` below tests/data/golden, its embedding in BF16.
  PoisonedModel(const std::string& model, int32_t token) {
    std::filesystem::copy(data_path(cat("golden/", model)), dir_);
    const auto index = nlohmann::json::parse(read_text(dir_ + "/model.safetensors.index.json"));
    for (const auto& [name, shard] : index["weight_map"].items()) {
      if (name.ends_with("embed_tokens.weight")) poison(dir_ + "/" + shard.get<std::string>(), name, token);
    }
    TANDEM_CHECK(poisoned_, "the model has no embedding");
  }

  const std::string& dir() const { return dir_; }

 private:
  void poison(const std::string& path, const std::string& name, int32_t token) {
    std::string bytes = read_text(path);
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data(), 8);
    const auto entry = nlohmann::json::parse(bytes.substr(8, header_bytes)).at(name);
    TANDEM_CHECK(entry["dtype"] == "BF16", name);
    const auto width = entry["shape"][1].get<uint64_t>();
    const uint64_t row = 8 + header_bytes + entry["data_offsets"][0].get<uint64_t>() + 2 * width * token;
    for (uint64_t i = 0; i < width; ++i) bytes.replace(row + 2 * i, 2, "\xC0\x7F", 2);  // a quiet NaN
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    poisoned_ = true;
  }

  TempFolder folder_;
  std::string dir_ = folder_.path();
  bool poisoned_ = false;
};

}  // namespace tandem::test
