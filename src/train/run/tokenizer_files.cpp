#include "train/run/tokenizer_files.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/cat.h"
#include "base/read_file.h"
#include "weights/atomic_file.h"

namespace tandem::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kRanks = "/tiktoken.model";
constexpr const char* kNames = "/tokenizer_config.json";
constexpr const char* kGeneration = "/generation_config.json";

std::optional<int64_t> parse_id(std::string_view text) {
  int64_t id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id < 0) return std::nullopt;
  return id;
}

Status id_too_large(const std::string& path, int64_t id, int64_t vocab_size) {
  return Status::invalid(cat(path, ": expected ids below the model's vocabulary, ", vocab_size, ", found ", id));
}

// Lines of a token in base64 and its rank.
Status check_ranks(const std::string& path, int64_t vocab_size) {
  const Result<std::string> text = read_file(path, "a tokenizer file");
  if (!text.is_ok()) return text.status();
  std::string_view rest = text.value();
  int64_t number = 0;
  for (; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    const std::optional<int64_t> rank =
        space == std::string_view::npos ? std::nullopt : parse_id(line.substr(space + 1));
    if (space == 0 || !rank) {
      return Status::invalid(cat(path, " line ", number + 1, ": expected a token in base64 and its rank, found \"",
                                 line.substr(0, 60), '"'));
    }
    if (*rank >= vocab_size) return id_too_large(path, *rank, vocab_size);
  }
  return number > 0 ? Status::ok() : Status::invalid(cat(path, ": expected a line a token, found an empty file"));
}

Result<json> read_names(const std::string& path) {
  const Result<std::string> text = read_file(path, "a tokenizer file");
  if (!text.is_ok()) return text.status();
  json names = json::parse(text.value(), nullptr, /*allow_exceptions=*/false);
  if (!names.is_object()) return Status::invalid(cat(path, ": expected a JSON object"));
  return names;
}

Status check_names(const std::string& path, int64_t vocab_size) {
  const Result<json> names = read_names(path);
  if (!names.is_ok()) return names.status();
  const auto added = names.value().find("added_tokens_decoder");
  if (added == names.value().end()) return Status::ok();
  if (!added->is_object()) return Status::invalid(cat(path, ": added_tokens_decoder: expected an object"));
  for (const auto& [text, token] : added->items()) {
    const std::optional<int64_t> id = parse_id(text);
    if (!id) return Status::invalid(cat(path, ": added_tokens_decoder: expected ids as keys, found \"", text, '"'));
    if (*id >= vocab_size) return id_too_large(path, *id, vocab_size);
    if (!token.is_object() || !token.contains("content") || !token["content"].is_string()) {
      return Status::invalid(
          cat(path, ": added_tokens_decoder.", text, ": expected an object with a text \"content\""));
    }
  }
  return Status::ok();
}

Status copy_file(const std::string& from, const std::string& to) {
  std::error_code error;
  if (fs::equivalent(from, to, error)) return Status::ok();
  const Result<std::string> bytes = read_file(from, "a tokenizer file");
  if (!bytes.is_ok()) return bytes.status();
  return write_file_atomic(to, bytes.value());
}

// Stop ids of a tokenizer that states none: the ids of the configuration, and the name that ends a message.
std::string derived_generation_config(std::string_view config_json, const json& names) {
  json out = json::object();
  const json config = json::parse(config_json, nullptr, false);
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (config.contains(key)) out[key] = config[key];
  }
  if (names.contains("added_tokens_decoder")) {
    for (const auto& [text, token] : names["added_tokens_decoder"].items()) {
      if (token["content"].get<std::string>() == "<|end_of_msg|>") out["eos_token_id"] = parse_id(text).value_or(0);
    }
  }
  return out.dump(2) + "\n";
}

}  // namespace

Status check_tokenizer_files(const std::string& tokenizer_dir, int64_t vocab_size) {
  TANDEM_RETURN_IF_ERROR(check_ranks(tokenizer_dir + kRanks, vocab_size));
  return check_names(tokenizer_dir + kNames, vocab_size);
}

Status copy_tokenizer_files(const std::string& tokenizer_dir, const std::string& run_dir,
                            std::string_view config_json) {
  for (const char* name : {kRanks, kNames}) TANDEM_RETURN_IF_ERROR(copy_file(tokenizer_dir + name, run_dir + name));
  std::error_code error;
  if (fs::exists(tokenizer_dir + kGeneration, error)) {
    return copy_file(tokenizer_dir + kGeneration, run_dir + kGeneration);
  }
  const Result<json> names = read_names(tokenizer_dir + kNames);
  if (!names.is_ok()) return names.status();
  return write_file_atomic(run_dir + kGeneration, derived_generation_config(config_json, names.value()));
}

}  // namespace tandem::train
