// tests/weights/fake_checkpoint.h: a small checkpoint written byte by byte, so that a test can bend any one tensor of
// it. Independent of the writer in src/weights.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/cat.h"
#include "config/model_config.h"
#include "tensor/dtype.h"
#include "weights/tensor_names.h"

namespace tandem::test {

struct FakeTensor {
  DType dtype = DType::kBF16;
  std::vector<int64_t> shape;
  std::string bytes;

  int64_t num_elements() const {
    int64_t n = 1;
    for (const int64_t extent : shape) n *= extent;
    return n;
  }
};

inline FakeTensor fake_tensor(DType dtype, std::vector<int64_t> shape, const std::vector<float>& values) {
  FakeTensor tensor{dtype, std::move(shape), {}};
  for (const float value : values) {
    const bf16 as_bf16 = to_bf16(value);
    const f16 as_f16 = to_f16(value);
    const auto byte = static_cast<char>(value);
    if (dtype == DType::kF32) tensor.bytes.append(reinterpret_cast<const char*>(&value), 4);
    if (dtype == DType::kBF16) tensor.bytes.append(reinterpret_cast<const char*>(&as_bf16), 2);
    if (dtype == DType::kF16) tensor.bytes.append(reinterpret_cast<const char*>(&as_f16), 2);
    if (dtype == DType::kU8) tensor.bytes.push_back(byte);
  }
  return tensor;
}

// Small values that every float type here holds exactly, different along the tensor and between tensors.
inline std::vector<float> pattern(int64_t count, size_t seed) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    const auto step = static_cast<int>((static_cast<size_t>(i) * 37 + seed * 11) % 127) - 63;
    values.push_back(static_cast<float>(step) / 64.0f);
  }
  return values;
}

class FakeCheckpoint {
 public:
  std::map<std::string, FakeTensor> tensors;
  size_t header_padding = 0;  // spaces behind the header; moves the data by as many bytes

  // Everything that `config` expects, stored as released.
  explicit FakeCheckpoint(const ModelConfig& config) {
    for_each_expected_tensor(config, [&](const ExpectedTensor& expected) {
      const std::string name(expected.name);
      const std::vector<int64_t> shape(expected.shape.begin(), expected.shape.end());
      const int64_t count = expected.num_elements();
      if (expected.released == ReleasedForm::kMxfp4) {
        tensors[name + "_packed"] = fake_tensor(DType::kU8, {shape[0], shape[1] / 2}, codes(count / 2));
        tensors[name + "_scale"] = fake_tensor(DType::kU8, {shape[0], shape[1] / 32},
                                               std::vector<float>(static_cast<size_t>(count / 32), 120));
        return;
      }
      std::vector<float> values = pattern(count, tensors.size());
      if (expected.shape_rule == ShapeRule::kALog) {
        for (size_t i = static_cast<size_t>(config.kda_num_heads); i < values.size(); ++i) values[i] = 0;
      }
      const DType dtype = expected.released == ReleasedForm::kF32 ? DType::kF32 : DType::kBF16;
      tensors[name] = fake_tensor(dtype, shape, values);
    });
  }

  // Moves a tensor to another name.
  void rename(const std::string& from, const std::string& to) {
    auto node = tensors.extract(from);
    ASSERT_FALSE(node.empty()) << from;
    node.key() = to;
    tensors.insert(std::move(node));
  }

  // Writes model.safetensors into a fresh folder and returns the folder.
  std::string write() const {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    std::string leaf = cat("tandem_", info->test_suite_name(), '_', info->name());
    for (char& c : leaf) {
      if (c == '/') c = '_';
    }
    const std::filesystem::path dir = std::filesystem::path(::testing::TempDir()) / leaf;
    std::filesystem::remove_all(dir);
    std::filesystem::create_directories(dir);
    std::string header = "{";
    uint64_t begin = 0;
    for (const auto& [name, tensor] : tensors) {
      header +=
          cat(header.size() > 1 ? "," : "", '"', name, "\":{\"dtype\":\"", dtype_name(tensor.dtype), "\",\"shape\":[");
      for (size_t i = 0; i < tensor.shape.size(); ++i) header += cat(i == 0 ? "" : ",", tensor.shape[i]);
      header += cat("],\"data_offsets\":[", begin, ',', begin + tensor.bytes.size(), "]}");
      begin += tensor.bytes.size();
    }
    header += '}';
    header.append((8 - header.size() % 8) % 8 + header_padding, ' ');
    const uint64_t length = header.size();
    std::ofstream out(dir / "model.safetensors", std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), 8);
    out << header;
    for (const auto& [name, tensor] : tensors) out << tensor.bytes;
    EXPECT_TRUE(out.good());
    return dir.string();
  }

 private:
  static std::vector<float> codes(int64_t count) {
    std::vector<float> bytes;
    for (int64_t i = 0; i < count; ++i) bytes.push_back(static_cast<float>((i * 29) % 127));
    return bytes;
  }
};

}  // namespace tandem::test
