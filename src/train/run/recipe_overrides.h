// train/run/recipe_overrides.h: `--set key.path=value` over a recipe's JSON. Stateless: any thread.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"

namespace tandem::train {

std::string absolute_path(const std::filesystem::path& base, const std::string& path);

// A number is the place in a list. What is no JSON is a string; a path is relative to the working folder, not to the
// recipe's. kInvalidArgument quotes the setting.
Status apply_override(nlohmann::json& root, const std::string& text);

}  // namespace tandem::train
