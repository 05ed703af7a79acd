// libFuzzer: any bytes as the front of a safetensors file. The input is a whole file: length prefix, header, data. What
// is accepted must be sound: sizes agree, tensors lie in the data section, every name is found again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "weights/mapped_file.h"
#include "weights/safetensors_header.h"
#include "weights/tensor_table.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  FaultList faults;
  const auto file = std::as_bytes(std::span(data, size));
  const auto length = read_header_length(file, size, "shard", faults);
  require(length.has_value() == faults.empty());
  if (!length) return 0;
  const size_t header_bytes = static_cast<size_t>(*length);
  std::vector<std::byte> json(header_bytes + MappedFile::kPadding);
  std::copy_n(file.begin() + kSafetensorsPrefixBytes, header_bytes, json.begin());
  const uint64_t data_bytes = size - kSafetensorsPrefixBytes - header_bytes;

  TensorTable table;
  table.reserve(header_bytes);
  parse_safetensors_header(std::span(json).first(header_bytes), {"shard", 0, data_bytes}, table, faults);
  table.sort_by_name();
  uint64_t covered = 0;
  for (int64_t i = 0; i < table.size(); ++i) {
    const TensorEntry entry = table.entry(i);
    require(i == 0 || table.name(i - 1) <= entry.name);
    require(table.find(entry.name).has_value());
    if (!faults.empty()) continue;
    require(entry.begin <= data_bytes && entry.num_bytes <= data_bytes - entry.begin);
    require(tensor_num_bytes(entry.dtype, entry.shape) == entry.num_bytes);
    covered += entry.num_bytes;
  }
  require(!faults.empty() || covered == data_bytes);
  (void)faults.to_status("file");
  return 0;
}
