#include "train/run/run_folder.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "train/run/tokenizer_files.h"
#include "weights/atomic_file.h"

namespace tandem::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kPrefix = "step-", kSuffix = ".pt";

Status folder_error(const std::string& path, std::string_view action, const std::error_code& error) {
  return Status::io(cat(path, ": cannot ", action, ": ", error.message()));
}

std::string text_of(const fs::path& path) { return path.filename().string(); }

// A name that a run gives to its files; anything else in the folder is not touched.
bool is_run_file(const std::string& name) {
  for (const std::string_view own : {"recipe.json", "config.json", "tiktoken.model", "tokenizer_config.json",
                                     "generation_config.json", "log.jsonl", "checkpoints"}) {
    if (name == own) return true;
  }
  return name.starts_with("bad-step-") && name.ends_with(".json");
}

// What a killed process was about to publish (weights/atomic_file.h): ".<name>.tmp-<process>-<number>".
bool is_leftover(const std::string& name) {
  const size_t end = name.find(".tmp-");
  if (!name.starts_with('.') || end == std::string::npos) return false;
  const std::string target = name.substr(1, end - 1);
  return is_run_file(target) || (target.starts_with(kPrefix) && target.ends_with(kSuffix));
}

bool is_run_folder(const std::string& run_dir) {
  std::error_code ignored;
  return fs::exists(run_dir + "/recipe.json", ignored) && fs::exists(run_dir + "/checkpoints", ignored);
}

Result<std::vector<std::string>> names_in(const std::string& dir) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator it(dir, error);
  for (const fs::directory_iterator end; !error && it != end; it.increment(error)) names.push_back(text_of(it->path()));
  if (error) return folder_error(dir, "list the folder", error);
  return names;
}

}  // namespace

std::string checkpoint_path(const std::string& run_dir, int64_t step) {
  std::string digits = cat(step);
  if (digits.size() < 8) digits.insert(0, 8 - digits.size(), '0');
  return cat(run_dir, "/checkpoints/", kPrefix, digits, kSuffix);
}

std::vector<int64_t> list_checkpoints(const std::string& run_dir) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator it(run_dir + "/checkpoints", error), end; !error && it != end; it.increment(error)) {
    const std::string name = text_of(it->path());
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    int64_t step = 0;
    const char* last = name.data() + name.size() - kSuffix.size();
    const auto [stop, parse_error] = std::from_chars(name.data() + kPrefix.size(), last, step);
    if (parse_error == std::errc() && stop == last) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

Status prune_checkpoints(const std::string& run_dir, int64_t keep) {
  const std::vector<int64_t> steps = list_checkpoints(run_dir);
  for (size_t i = 0; i + static_cast<size_t>(keep) < steps.size(); ++i) {
    std::error_code error;
    const std::string path = checkpoint_path(run_dir, steps[i]);
    if (!fs::remove(path, error) && error) return folder_error(path, "remove the old checkpoint", error);
  }
  return Status::ok();
}

Status set_aside_damaged(const std::string& path) {
  std::error_code error;
  fs::rename(path, path + ".damaged", error);
  return error ? folder_error(path, "rename the damaged checkpoint", error) : Status::ok();
}

Status check_run_folder(const std::string& run_dir, ExistingRun existing) {
  if (is_run_folder(run_dir)) {
    if (existing != ExistingRun::kRefuse) return Status::ok();
    return Status::failed_precondition(
        cat(run_dir, ": there is a run in this folder: --resume goes on with it, --overwrite starts it anew"));
  }
  const Result<std::vector<std::string>> names = names_in(run_dir);
  if (!names.is_ok()) return names.status();
  for (const std::string& name : names.value()) {
    if (name == "checkpoints" || is_leftover(name)) continue;
    return Status::invalid(cat(run_dir, ": expected a new folder, an empty one or a run, found a folder with ", name));
  }
  return Status::ok();
}

Status prepare_run_folder(const std::string& run_dir, ExistingRun existing) {
  TANDEM_RETURN_IF_ERROR(check_run_folder(run_dir, existing));
  const Result<std::vector<std::string>> names = names_in(run_dir);
  if (!names.is_ok()) return names.status();
  std::error_code error;
  for (const std::string& name : names.value()) {
    if (!is_leftover(name) && !(existing == ExistingRun::kOverwrite && is_run_file(name))) continue;
    fs::remove_all(run_dir + "/" + name, error);
    if (error) return folder_error(run_dir + "/" + name, "remove it", error);
  }
  const std::string checkpoints = run_dir + "/checkpoints";
  fs::create_directories(checkpoints, error);
  if (error) return folder_error(checkpoints, "make the folder", error);
  const Result<std::vector<std::string>> saved = names_in(checkpoints);
  if (!saved.is_ok()) return saved.status();
  for (const std::string& name : saved.value()) {
    if (is_leftover(name)) fs::remove(checkpoints + "/" + name, error);
  }
  return Status::ok();
}

Status write_run_files(const Recipe& recipe, std::string_view config_json) {
  TANDEM_RETURN_IF_ERROR(write_file_atomic(recipe.run + "/recipe.json", recipe_json(recipe)));
  TANDEM_RETURN_IF_ERROR(write_file_atomic(recipe.run + "/config.json", config_json));
  return recipe.tokenizer.empty() ? Status::ok() : copy_tokenizer_files(recipe.tokenizer, recipe.run, config_json);
}

std::string run_identity(const Recipe& recipe, std::string_view config_json,
                         const std::map<std::string, std::vector<std::string>>& fingerprints) {
  json identity = json::parse(recipe_json(recipe));
  for (const char* free : {"run", "tokenizer", "validation", "micro_batch_tokens", "recompute_sublayers", "chunk_size",
                           "require_loss_mask", "checkpoint", "log_every_steps", "explode_factor"}) {
    identity.erase(free);
  }
  if (recipe.init_from) identity["init"] = "from a run";
  identity["model"] = json::parse(config_json, nullptr, false);
  identity["data"] = fingerprints;
  return identity.dump();
}

Status check_identity(const std::string& run_dir, const std::string& of_run, const std::string& of_recipe) {
  const json run = json::parse(of_run, nullptr, false), recipe = json::parse(of_recipe, nullptr, false);
  if (!run.is_object()) return Status::invalid(cat(run_dir, ": the checkpoint does not say what run it belongs to"));
  std::string message = cat(run_dir, ": cannot go on with a recipe that trains something else");
  size_t differences = 0;
  for (const json& change : json::diff(run, recipe)) {
    const json::json_pointer place(change["path"].get<std::string>());
    const auto value_in = [&](const json& from) {
      if (!from.contains(place)) return std::string("nothing");
      const json& value = from[place];
      return value.is_structured() ? std::string("another value") : value.dump();
    };
    std::string key = place.to_string().substr(1);
    std::replace(key.begin(), key.end(), '/', '.');
    message += cat('\n', key, ": the run has ", value_in(run), ", the recipe ", value_in(recipe));
    ++differences;
  }
  return differences == 0 ? Status::ok() : Status::failed_precondition(std::move(message));
}

}  // namespace tandem::train
