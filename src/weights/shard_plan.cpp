#include "weights/shard_plan.h"

#include <algorithm>
#include <string_view>

#include "base/cat.h"
#include "weights/safetensors_writer.h"

namespace tandem {
namespace {

constexpr size_t kShardDigits = 5;

std::string padded_number(size_t number) {
  std::string digits = cat(number);
  return digits.size() >= kShardDigits ? digits : std::string(kShardDigits - digits.size(), '0') + digits;
}

}  // namespace

std::vector<PlannedShard> plan_shards(const TensorTable& tensors, uint64_t max_shard_bytes) {
  std::vector<PlannedShard> shards;
  for (int64_t i = 0; i < tensors.size(); ++i) {
    const uint64_t bytes = tensors.entry(i).num_bytes;
    const bool full = !shards.empty() && bytes > max_shard_bytes - std::min(max_shard_bytes, shards.back().data_bytes);
    if (shards.empty() || full) shards.push_back({.name = "", .first = i, .count = 0, .data_bytes = 0});
    ++shards.back().count;
    shards.back().data_bytes += bytes;
  }
  for (size_t s = 0; s < shards.size(); ++s) {
    shards[s].name = cat("model-", padded_number(s + 1), "-of-", padded_number(shards.size()), ".safetensors");
  }
  return shards;
}

std::string shard_index_json(const TensorTable& tensors, const std::vector<PlannedShard>& shards) {
  uint64_t total_bytes = 0;
  for (const PlannedShard& shard : shards) total_bytes += shard.data_bytes;
  std::string json = cat("{\n  \"metadata\": {\n    \"total_size\": ", total_bytes, "\n  },\n  \"weight_map\": {");
  std::string_view separator = "\n    ";
  for (const PlannedShard& shard : shards) {
    for (int64_t i = shard.first; i < shard.first + shard.count; ++i) {
      json += separator;
      append_json_string(json, tensors.name(i));
      json += ": ";
      append_json_string(json, shard.name);
      separator = ",\n    ";
    }
  }
  json += "\n  }\n}\n";
  return json;
}

}  // namespace tandem
