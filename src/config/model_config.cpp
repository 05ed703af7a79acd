#include "config/model_config.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "base/read_file.h"
#include "config/json_fields.h"
#include "config/model_config_parts.h"

namespace tandem {
namespace {

using nlohmann::json;

constexpr std::string_view kK3Architecture = "KimiK3ForConditionalGeneration";
constexpr std::string_view kLinearArchitecture = "KimiLinearForCausalLM";
constexpr uintmax_t kMaxFileBytes = uintmax_t{64} << 20;

// Walks a text that is not JSON once more, to say where it stops being it.
struct SyntaxErrorFinder : nlohmann::json_sax<json> {
  size_t position = 0;
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::detail::exception&) override {
    position = at;
    return false;
  }
};

bool lists_architecture(const json* list, std::string_view name) {
  if (list == nullptr || !list->is_array()) return false;
  return std::any_of(list->begin(), list->end(),
                     [&](const json& item) { return item.is_string() && item.get_ref<const std::string&>() == name; });
}

std::string describe_architectures(const json* list) {
  if (list == nullptr) return "nothing";
  if (!list->is_array()) return describe(*list);
  std::string names = "[";
  for (size_t i = 0; i < std::min<size_t>(list->size(), 4); ++i) names += cat(i == 0 ? "" : ", ", describe((*list)[i]));
  return names + (list->size() > 4 ? ", …]" : "]");
}

// The recogniser: which family, and that the text fields stand where this family keeps them.
std::optional<ModelFamily> read_family(const JsonFields& root) {
  const json* architectures = root.find("architectures");
  const bool nested = root.has("text_config");
  if (lists_architecture(architectures, kK3Architecture)) {
    root.expect_text("model_type", "kimi_k3");
    if (!nested) {
      root.problem("text_config", cat("an object (", kK3Architecture, " keeps its text fields there)"),
                   root.has("hidden_size") ? "nothing, and text fields at the top level" : "nothing");
      return std::nullopt;
    }
    return ModelFamily::kKimiK3;
  }
  if (lists_architecture(architectures, kLinearArchitecture)) {
    root.expect_text("model_type", "kimi_linear");
    if (nested) {
      root.problem("text_config", cat("nothing (", kLinearArchitecture, " keeps its text fields at the top level)"));
      return std::nullopt;
    }
    if (root.has("vision_config"))
      root.problem("vision_config", cat("nothing (", kLinearArchitecture, " is text only)"));
    return ModelFamily::kKimiLinear;
  }
  root.problem("architectures", cat("[\"", kK3Architecture, "\"] or [\"", kLinearArchitecture, "\"]"),
               describe_architectures(architectures));
  return std::nullopt;
}

// The object that states `key`: the top level, or else text_config.
const JsonFields& owner_of(std::string_view key, const JsonFields& root, const JsonFields& text) {
  return root.has(key) ? root : text;
}

std::optional<int32_t> read_token_id(std::string_view key, const JsonFields& root, const JsonFields& text) {
  const auto id = owner_of(key, root, text).integer(key, {0, std::numeric_limits<int32_t>::max()});
  if (!id.has_value()) return std::nullopt;
  return static_cast<int32_t>(*id);
}

void read_token_ids(const JsonFields& root, const JsonFields& text, ModelConfig& config) {
  config.bos_token_id = read_token_id("bos_token_id", root, text);
  config.pad_token_id = read_token_id("pad_token_id", root, text);
  config.media_placeholder_token_id = read_token_id("media_placeholder_token_id", root, text);
  const JsonFields& owner = owner_of("eos_token_id", root, text);
  const json* eos = owner.find("eos_token_id");
  if (eos != nullptr && eos->is_array()) {
    const auto ids = owner.integer_list("eos_token_id", {0, std::numeric_limits<int32_t>::max()});
    for (const int64_t id : ids.value_or(std::vector<int64_t>{})) {
      const auto token = static_cast<int32_t>(id);
      auto& known = config.eos_token_ids;
      if (std::find(known.begin(), known.end(), token) == known.end()) known.push_back(token);
    }
  } else if (const auto id = read_token_id("eos_token_id", root, text)) {
    config.eos_token_ids.push_back(*id);
  }
}

void read_fields(const json& document, ModelConfig& config, ConfigProblems& problems) {
  const JsonFields root(&document, "", problems);
  const std::optional<ModelFamily> family = read_family(root);
  if (!family.has_value()) return;  // where the other fields stand is not known
  config.family = *family;
  const bool nested = config.family == ModelFamily::kKimiK3;
  const JsonFields text = nested ? root.object("text_config") : root;
  if (nested) {
    if (const json* value = root.find("text_config"); !value->is_object()) return;  // reported by object()
    text.expect_text("model_type", "kimi_linear");
    const json* architectures = text.find("architectures");
    if (architectures != nullptr && !lists_architecture(architectures, kLinearArchitecture)) {
      text.problem("architectures", cat("[\"", kLinearArchitecture, "\"]"), describe_architectures(architectures));
    }
  }

  read_text_config(text, config);
  read_token_ids(root, text, config);
  config.tie_word_embeddings =
      owner_of("tie_word_embeddings", root, text).boolean("tie_word_embeddings").value_or(false);
  for (const std::string_view key : {"dtype", "torch_dtype"}) {
    if (const auto dtype = owner_of(key, root, text).text(key)) {
      config.dtype = *dtype;
      break;
    }
  }
  for (const std::string_view key : {"max_position_embeddings", "model_max_length"}) {
    const JsonFields& owner = text.has(key) ? text : root;
    if (const auto limit = owner.integer(key, {1, int64_t{1} << 40})) {
      config.max_position_embeddings = *limit;
      break;
    }
  }
  read_quantization(root, config);
  if (nested) {
    read_quantization(text, config);
    if (root.has("vision_config")) read_vision_config(root.object("vision_config"), config);
  }
  if (problems.count() == 0) check_total_size(config, problems);
}

}  // namespace

int64_t ModelConfig::num_layers_of(LayerKind kind) const { return std::count(kinds.begin(), kinds.end(), kind); }

int64_t ModelConfig::max_attn_res_sources() const {
  switch (attn_res_mode) {
    case AttnResMode::kNone: return 0;
    case AttnResMode::kBlock: return (num_hidden_layers + attn_res_block_size - 1) / attn_res_block_size + 1;
    case AttnResMode::kFull: return 2 * num_hidden_layers + 1;
  }
  return 0;
}

Result<ModelConfig> parse_model_config(std::string_view json_text, std::string_view origin) {
  const json document = json::parse(json_text, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) {
    SyntaxErrorFinder finder;
    json::sax_parse(json_text, &finder);
    return Status::invalid(
        cat(origin, ": expected JSON, found a syntax error at byte ", finder.position, " of ", json_text.size()));
  }
  if (!document.is_object()) {
    return Status::invalid(cat(origin, ": expected a JSON object, found ", describe(document)));
  }
  ModelConfig config;
  ConfigProblems problems;
  read_fields(document, config, problems);
  TANDEM_RETURN_IF_ERROR(problems.to_status(origin));
  return config;
}

Result<ModelConfig> load_model_config_file(const std::string& path) {
  const Result<std::string> text = read_file(path, "a configuration file", kMaxFileBytes);
  if (!text.is_ok()) return text.status();
  return parse_model_config(text.value(), path);
}

Result<ModelConfig> load_model_config(const std::string& model_dir) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(model_dir, error);
  if (status.type() == fs::file_type::not_found) {
    return Status::not_found(cat(model_dir, ": expected a model folder, found nothing there"));
  }
  if (error) return Status::io(cat(model_dir, ": ", error.message()));
  if (!fs::is_directory(status)) return Status::invalid(cat(model_dir, ": expected a model folder, found a file"));
  const std::string path = (fs::path(model_dir) / "config.json").string();
  if (!fs::exists(path, error)) {
    return Status::not_found(cat(path, ": no such file; a model folder holds config.json beside its weights"));
  }
  return load_model_config_file(path);
}

}  // namespace tandem
