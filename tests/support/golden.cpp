#include "support/golden.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tensor/dtype.h"

namespace tandem::test {
namespace {

[[noreturn]] void die(const std::string& message) {
  std::fprintf(stderr, "golden: %s\n", message.c_str());
  std::abort();
}

}  // namespace

int64_t GoldenTensor::num_elements() const {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

std::string data_path(const std::string& relative) {
  const char* root = std::getenv("TANDEM_TEST_DATA");
  return (root != nullptr ? std::string(root) : std::string(TANDEM_TEST_DATA_DIR)) + "/" + relative;
}

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) die("cannot read " + path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

Golden Golden::load(const std::string& relative) { return load_path(data_path(relative)); }

Golden Golden::load_path(const std::string& path) {
  const std::string file = read_text(path);
  if (file.size() < 8) die(path + " is shorter than a header");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), 8);
  const auto header = nlohmann::json::parse(file.substr(8, header_bytes));
  const char* data = file.data() + 8 + header_bytes;
  Golden golden;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    GoldenTensor tensor;
    tensor.dtype = entry.at("dtype").get<std::string>();
    tensor.shape = entry.at("shape").get<std::vector<int64_t>>();
    const char* bytes = data + entry.at("data_offsets").at(0).get<uint64_t>();
    const auto count = static_cast<size_t>(tensor.num_elements());
    if (count == 0) {
      // nothing to copy, and no address to copy it from
    } else if (tensor.dtype == "F32") {
      tensor.f32.resize(count);
      std::memcpy(tensor.f32.data(), bytes, count * 4);
    } else if (tensor.dtype == "BF16") {
      for (size_t i = 0; i < count; ++i) {
        bf16 value;
        std::memcpy(&value, bytes + 2 * i, 2);
        tensor.f32.push_back(to_f32(value));
      }
    } else if (tensor.dtype == "I32") {
      tensor.i32.resize(count);
      std::memcpy(tensor.i32.data(), bytes, count * 4);
    } else if (tensor.dtype == "U8") {
      tensor.u8.assign(reinterpret_cast<const uint8_t*>(bytes), reinterpret_cast<const uint8_t*>(bytes) + count);
    } else {
      die(path + ": " + name + " has dtype " + tensor.dtype);
    }
    golden.tensors_.emplace(name, std::move(tensor));
  }
  return golden;
}

const GoldenTensor& Golden::operator[](const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) die("no tensor named " + name);
  return found->second;
}

}  // namespace tandem::test
