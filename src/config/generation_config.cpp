#include "config/generation_config.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/cat.h"
#include "base/read_file.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

void add_problem(std::string& problems, std::string_view origin, std::string_view problem) {
  if (!problems.empty()) problems.push_back('\n');
  problems += cat(origin, ": ", problem);
}

// The value as a message shows it: a list or an object by its kind only (it may be nested without end), a long text
// cut.
std::string shown(const Json& value) {
  constexpr size_t kMaxShown = 60;
  if (value.is_structured()) return value.type_name();
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);  // ASCII: a cut never splits a character
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  return text;
}

void read_number(const Json& root, const char* field, double high, double& out, std::string_view origin,
                 std::string& problems) {
  const auto found = root.find(field);
  if (found == root.end() || found->is_null()) return;
  const double value = found->is_number() ? found->get<double>() : -1.0;
  if (value >= 0.0 && value <= high) {
    out = value;
  } else {
    add_problem(problems, origin, cat(field, ": expected a number in [0, ", high, "], found ", shown(*found)));
  }
}

void read_token_id(const Json& value, std::vector<int32_t>& out, std::string_view origin, std::string& problems) {
  // number_unsigned covers every non-negative integer the parser meets.
  if (!value.is_number_unsigned() || value.get<uint64_t>() > INT32_MAX) {
    add_problem(problems, origin, cat("eos_token_id: expected a token id or a list of them, found ", shown(value)));
    return;
  }
  const auto id = static_cast<int32_t>(value.get<uint64_t>());
  if (std::find(out.begin(), out.end(), id) == out.end()) out.push_back(id);
}

}  // namespace

Result<GenerationConfig> parse_generation_config(std::string_view json_text, std::string_view origin) {
  const Json root = Json::parse(json_text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) {
    return Status::invalid(
        cat(origin, ": expected a JSON object, found ", root.is_discarded() ? "invalid JSON" : root.type_name()));
  }
  GenerationConfig config;
  std::string problems;
  read_number(root, "temperature", 2.0, config.temperature, origin, problems);
  read_number(root, "top_p", 1.0, config.top_p, origin, problems);
  read_number(root, "min_p", 1.0, config.min_p, origin, problems);
  read_number(root, "repetition_penalty", 10.0, config.repetition_penalty, origin, problems);
  if (config.repetition_penalty == 0.0) {
    add_problem(problems, origin, "repetition_penalty: expected a number above 0, found 0");
  }
  double top_k = 0.0;
  read_number(root, "top_k", INT32_MAX, top_k, origin, problems);
  config.top_k = static_cast<int32_t>(top_k);
  if (config.top_k != top_k) add_problem(problems, origin, "top_k: expected a whole number");
  if (const auto sample = root.find("do_sample"); sample != root.end() && !sample->is_null()) {
    if (!sample->is_boolean())
      add_problem(problems, origin, cat("do_sample: expected true or false, found ", shown(*sample)));
    else if (!sample->get<bool>())
      config.temperature = 0.0;
  }
  if (const auto eos = root.find("eos_token_id"); eos != root.end() && !eos->is_null()) {
    if (eos->is_array()) {
      for (const Json& id : *eos) read_token_id(id, config.eos_token_ids, origin, problems);
    } else {
      read_token_id(*eos, config.eos_token_ids, origin, problems);
    }
  }
  if (!problems.empty()) return Status::invalid(problems);
  return config;
}

Result<GenerationConfig> load_generation_config(const std::string& model_dir) {
  const std::string path = model_dir + "/generation_config.json";
  const Result<std::string> text = read_file(path, "a generation configuration file");
  if (!text.is_ok()) {
    if (text.status().code() == StatusCode::kNotFound) return GenerationConfig{};
    return text.status();
  }
  return parse_generation_config(text.value(), path);
}

}  // namespace tandem
