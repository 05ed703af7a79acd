// The reader of routing traces: every line is checked, and refused by its number.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "stream/trace_replay.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostExperts = 1 << 16;  // of a layer; far above any model's

struct Place {
  const std::string& name;
  int64_t line;
  std::string text() const { return cat(name, ":", line, ": "); }
};

Status parse_layer(const Json& ids, const Place& place, size_t layer, std::vector<int32_t>& out) {
  const std::string where = cat(place.text(), "layer ", layer, ": ");
  if (!ids.is_array()) return Status::invalid(cat(where, "expected an array of expert ids, found ", ids.type_name()));
  if (ids.empty()) return Status::invalid(cat(where, "expected at least one expert id, found none"));
  for (const Json& id : ids) {
    if (!id.is_number_integer()) {
      return Status::invalid(cat(where, "expected expert ids that are whole numbers, found ", id.dump()));
    }
    if (id < 0 || id >= kMostExperts) {
      return Status::invalid(cat(where, "expected expert ids of 0 to ", kMostExperts - 1, ", found ", id.dump()));
    }
    const auto value = id.get<int32_t>();
    if (!out.empty() && value <= out.back()) {
      return Status::invalid(cat(where, "expected ascending expert ids, found ", value, " after ", out.back()));
    }
    out.push_back(value);
  }
  return Status::ok();
}

Status parse_line(std::string_view line, const Place& place, RecordedTrace& trace) {
  const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) return Status::invalid(cat(place.text(), "expected a JSON object, found broken JSON"));
  if (!object.is_object()) {
    return Status::invalid(cat(place.text(), "expected a JSON object, found ", object.type_name()));
  }
  for (const char* key : {"tok", "layers"}) {
    if (!object.contains(key)) {
      return Status::invalid(cat(place.text(), "expected the keys \"tok\" and \"layers\", found no \"", key, "\""));
    }
  }
  if (!object["tok"].is_number_integer() || object["tok"] < 0) {
    return Status::invalid(cat(place.text(), "tok: expected a whole number from 0 on, found ", object["tok"].dump()));
  }
  const Json& layers = object["layers"];
  if (!layers.is_array() || layers.empty()) {
    return Status::invalid(cat(place.text(), "layers: expected an array with an entry a layer, found ",
                               layers.is_array() ? "an empty one" : layers.type_name()));
  }
  if (trace.tokens.empty()) trace.num_layers = static_cast<int64_t>(layers.size());
  if (static_cast<int64_t>(layers.size()) != trace.num_layers) {
    return Status::invalid(
        cat(place.text(), "layers: expected ", trace.num_layers, " as in the first line, found ", layers.size()));
  }
  std::vector<std::vector<int32_t>> token(layers.size());
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    TANDEM_RETURN_IF_ERROR(parse_layer(layers[layer], place, layer, token[layer]));
    trace.num_needs += static_cast<int64_t>(token[layer].size());
  }
  trace.tokens.push_back(std::move(token));
  return Status::ok();
}

// Every id must lie below num_experts; 0 asks for the smallest number that holds them all.
Status settle_experts(const std::string& name, int64_t num_experts, RecordedTrace& trace) {
  int64_t largest = 0;
  for (size_t token = 0; token < trace.tokens.size(); ++token) {
    for (const std::vector<int32_t>& ids : trace.tokens[token]) {
      if (num_experts > 0 && ids.back() >= num_experts) {
        return Status::invalid(
            cat(name, ": token ", token, ": expected expert ids below ", num_experts, ", found ", ids.back()));
      }
      largest = std::max<int64_t>(largest, ids.back());
    }
  }
  trace.num_experts = num_experts > 0 ? num_experts : largest + 1;
  return Status::ok();
}

}  // namespace

Result<RecordedTrace> parse_trace(std::string_view text, const std::string& name, int64_t num_experts) {
  RecordedTrace trace;
  int64_t line_number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line_number;
    TANDEM_RETURN_IF_ERROR(parse_line(line, {name, line_number}, trace));
  }
  if (trace.tokens.empty()) return Status::invalid(cat(name, ": expected a line a token, found an empty file"));
  TANDEM_RETURN_IF_ERROR(settle_experts(name, num_experts, trace));
  return trace;
}

}  // namespace tandem
