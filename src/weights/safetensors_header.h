// weights/safetensors_header.h: the front of one safetensors file: 8 bytes of little-endian header length, then a JSON
// object from tensor name to {dtype, shape, data_offsets}, then the data section, which the tensors cover exactly.
//   Source: the safetensors format description; limits as in its reference implementation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "weights/fault_list.h"
#include "weights/tensor_table.h"

namespace tandem {

inline constexpr uint64_t kSafetensorsPrefixBytes = 8;
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// The header length stated by the first bytes of a file; nothing and a fault when the file cannot hold it.
std::optional<uint64_t> read_header_length(std::span<const std::byte> file_begin, uint64_t file_bytes,
                                           std::string_view shard_name, FaultList& faults);

struct HeaderPlace {
  std::string_view shard_name;  // for messages
  uint32_t shard = 0;
  uint64_t data_bytes = 0;  // of the file, behind the header
};

// Adds the tensors of one header to `table` and what is wrong with them to `faults`. A tensor with a fault is added too
// (under its name, with no elements), so that comparisons by name do not report it a second time.
// `json` has MappedFile::kPadding readable bytes behind it.
void parse_safetensors_header(std::span<const std::byte> json, const HeaderPlace& place, TensorTable& table,
                              FaultList& faults);

}  // namespace tandem
