#include "train/run/recipe_overrides.h"

#include <charconv>
#include <string_view>
#include <vector>

#include "base/cat.h"

namespace tandem::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool is_path_key(const std::vector<std::string>& keys) {
  const std::string& first = keys.front();
  return (keys.size() == 1 && (first == "run" || first == "model" || first == "tokenizer")) || first == "data" ||
         (first == "init" && keys.size() == 2 && keys[1] == "from");
}

void make_paths_absolute(json& value, const fs::path& base) {
  if (value.is_string()) value = absolute_path(base, value.get<std::string>());
  if (value.is_structured()) {
    for (json& item : value) make_paths_absolute(item, base);
  }
}

Status refuse_override(const std::string& text, std::string_view expected) {
  return Status::invalid(cat("--set ", text, ": expected ", expected));
}

}  // namespace

std::string absolute_path(const fs::path& base, const std::string& path) {
  return (fs::path(path).is_absolute() ? fs::path(path) : base / path).lexically_normal().string();
}

Status apply_override(json& root, const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) return refuse_override(text, "key.path=value");
  std::vector<std::string> keys = {""};
  for (const char c : text.substr(0, equals)) {
    if (c == '.') {
      keys.emplace_back();
    } else {
      keys.back().push_back(c);
    }
  }
  json* place = &root;
  for (const std::string& key : keys) {
    if (place->is_array()) {
      size_t index = 0;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), index);
      if (error != std::errc() || end != key.data() + key.size() || index >= place->size()) {
        return refuse_override(text,
                               cat("an entry from 0 to ", place->size(), " (not including) in place of \"", key, '"'));
      }
      place = &(*place)[index];
    } else if (place->is_object() || place->is_null()) {
      place = &(*place)[key];
    } else {
      return refuse_override(text, cat("a key that holds no value itself in front of \"", key, '"'));
    }
  }
  const std::string value_text = text.substr(equals + 1);
  json value = json::parse(value_text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) value = value_text;
  std::error_code error;
  if (is_path_key(keys)) make_paths_absolute(value, fs::current_path(error));
  *place = std::move(value);
  return Status::ok();
}

}  // namespace tandem::train
