// tests/support/golden.h: reads the golden safetensors files. Independent of src/weights on purpose: what judges the
// loader must not share its faults.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tandem::test {

struct GoldenTensor {
  std::string dtype;  // as in the file
  std::vector<int64_t> shape;
  std::vector<float> f32;    // F32, and BF16 widened
  std::vector<int32_t> i32;  // I32
  std::vector<uint8_t> u8;   // U8
  int64_t num_elements() const;
};

class Golden {
 public:
  // `relative` is below tests/data, for example "golden/ops/kda.safetensors". Aborts the test program when unreadable.
  static Golden load(const std::string& relative);
  static Golden load_path(const std::string& path);
  const GoldenTensor& operator[](const std::string& name) const;  // fails loudly on an unknown name
  bool has(const std::string& name) const { return tensors_.count(name) != 0; }
  const std::map<std::string, GoldenTensor>& tensors() const { return tensors_; }

 private:
  std::map<std::string, GoldenTensor> tensors_;
};

std::string data_path(const std::string& relative);  // absolute path below tests/data
std::string read_text(const std::string& path);

}  // namespace tandem::test
