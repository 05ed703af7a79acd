// weights/shard_index.h: model.safetensors.index.json: {"metadata": {"total_size": N}, "weight_map": {name: shard}}.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/function_ref.h"
#include "weights/fault_list.h"

namespace tandem {

inline constexpr std::string_view kIndexFileName = "model.safetensors.index.json";

struct ShardIndexSummary {
  bool readable = false;               // false: a fault says why
  std::optional<uint64_t> total_size;  // absent in some exports
};

// Visits the weight map in file order. `json` has MappedFile::kPadding readable bytes behind it; the views passed to
// `visit` are valid during the visit.
ShardIndexSummary parse_shard_index(std::span<const std::byte> json,
                                    FunctionRef<void(std::string_view tensor, std::string_view shard)> visit,
                                    FaultList& faults);

// A shard is a file of the checkpoint's own folder: no separators, no parent, no control characters.
bool is_safe_shard_name(std::string_view name);

}  // namespace tandem
