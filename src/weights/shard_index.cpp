#include "weights/shard_index.h"

#include <algorithm>

#include "weights/json_text.h"
#include "weights/mapped_file.h"

namespace tandem {
namespace {

namespace ondemand = simdjson::ondemand;
using Visit = FunctionRef<void(std::string_view, std::string_view)>;

// A fault of the index itself; what the visitor objects to does not make it unreadable.
template <class... Pieces>
void add_fault(ShardIndexSummary& summary, FaultList& faults, const Pieces&... pieces) {
  summary.readable = false;
  faults.add(kIndexFileName, ": ", pieces...);
}

simdjson::error_code parse_metadata(ondemand::value value, ShardIndexSummary& summary, FaultList& faults) {
  bool null = false;
  if (const auto error = value.is_null().get(null)) return error;
  if (null) return simdjson::SUCCESS;
  ondemand::object object;
  if (const auto error = value.get_object().get(object)) return error;
  for (auto item : object) {
    ondemand::field field;
    if (const auto error = std::move(item).get(field)) return error;
    std::string_view key;
    if (const auto error = read_key(field, key)) return error;
    if (key != "total_size") continue;
    if (summary.total_size) add_fault(summary, faults, "duplicate key metadata.total_size");
    uint64_t total_size = 0;
    if (field.value().get_uint64().get(total_size)) {
      add_fault(summary, faults, "metadata.total_size must be a whole number of bytes, found ",
                field.value().raw_json_token());
      continue;
    }
    summary.total_size = total_size;
  }
  return simdjson::SUCCESS;
}

simdjson::error_code parse_weight_map(ondemand::value value, Visit visit) {
  ondemand::object object;
  if (const auto error = value.get_object().get(object)) return error;
  for (auto item : object) {
    ondemand::field field;
    if (const auto error = std::move(item).get(field)) return error;
    std::string_view tensor;
    std::string_view shard;
    if (const auto error = read_key(field, tensor)) return error;
    if (const auto error = read_string(field.value(), shard)) return error;
    visit(tensor, shard);
  }
  return simdjson::SUCCESS;
}

simdjson::error_code parse_root(ondemand::object& root, Visit visit, ShardIndexSummary& summary, FaultList& faults) {
  bool has_map = false;
  bool has_metadata = false;
  for (auto item : root) {
    ondemand::field field;
    if (const auto error = std::move(item).get(field)) return error;
    std::string_view key;
    if (const auto error = read_key(field, key)) return error;
    if (key == "metadata") {
      if (has_metadata) add_fault(summary, faults, "duplicate key metadata");
      has_metadata = true;
      if (const auto error = parse_metadata(field.value(), summary, faults)) return error;
    } else if (key == "weight_map") {
      if (has_map) add_fault(summary, faults, "duplicate key weight_map");
      has_map = true;
      if (const auto error = parse_weight_map(field.value(), visit)) return error;
    }
  }
  if (!has_map) add_fault(summary, faults, "no weight_map");
  return simdjson::SUCCESS;
}

}  // namespace

ShardIndexSummary parse_shard_index(std::span<const std::byte> json, Visit visit, FaultList& faults) {
  ShardIndexSummary summary;
  summary.readable = true;
  ondemand::parser parser;
  ondemand::document document;
  ondemand::object root;
  simdjson::error_code error = parser.iterate(padded_json(json, MappedFile::kPadding)).get(document);
  if (!error) error = document.get_object().get(root);
  if (!error) error = parse_root(root, visit, summary, faults);
  const char* rest = nullptr;
  if (!error && document.current_location().get(rest) == simdjson::SUCCESS) error = simdjson::TRAILING_CONTENT;
  if (error) add_fault(summary, faults, "not a valid index: ", simdjson::error_message(error));
  return summary;
}

bool is_safe_shard_name(std::string_view name) {
  if (name.empty() || name == "." || name == "..") return false;
  return std::ranges::none_of(
      name, [](char c) { return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

}  // namespace tandem
