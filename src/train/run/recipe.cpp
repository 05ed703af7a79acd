#include "train/run/recipe.h"

#include <glob.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "base/read_file.h"
#include "config/json_fields.h"
#include "train/run/recipe_overrides.h"

namespace tandem::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kMaxRecipeBytes = int64_t{1} << 20;
constexpr int64_t kMaxTokens = int64_t{1} << 50;
constexpr int64_t kMaxLength = int64_t{1} << 24;
constexpr int64_t kMaxSteps = int64_t{1} << 40;

fs::path folder_of(const std::string& path) {
  std::error_code ignored;
  return fs::absolute(path, ignored).parent_path();
}

void refuse_unknown(const json* object, const std::string& path, std::initializer_list<std::string_view> known,
                    ConfigProblems& problems) {
  if (object == nullptr || !object->is_object()) return;
  for (const auto& [key, value] : object->items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    std::string expected = "one of";
    for (const std::string_view name : known) expected += cat(' ', name);
    problems.add(path.empty() ? key : cat(path, '.', key), expected, "an unknown key");
  }
}

// A whole number, 1e8 too.
std::optional<int64_t> count(const JsonFields& fields, std::string_view key, IntRange range) {
  const json* value = fields.find(key);
  if (value != nullptr && value->is_number_float()) {
    const double x = value->get<double>();
    if (x >= static_cast<double>(range.min) && x <= static_cast<double>(range.max) && x == std::floor(x)) {
      return static_cast<int64_t>(x);
    }
  }
  return fields.integer(key, range);
}

int64_t required_count(const JsonFields& fields, std::string_view key, IntRange range) {
  if (!fields.has(key)) (void)fields.required_integer(key, range);
  return count(fields, key, range).value_or(0);
}

template <class T>
void assign(T& target, const std::optional<T>& value) {
  if (value) target = *value;
}

void number_between(const JsonFields& fields, std::string_view key, double min, double max, double& target) {
  const std::optional<double> value = fields.number(key);
  if (!value) return;
  if (*value < min || *value > max) return fields.problem(key, cat("a number from ", min, " to ", max));
  target = *value;
}

template <class T>
void choice(const JsonFields& fields, std::string_view key,
            std::initializer_list<std::pair<std::string_view, T>> choices, T& target) {
  const std::optional<std::string> name = fields.text(key);
  if (!name) return;
  std::string expected;
  for (const auto& [text, value] : choices) {
    if (text == *name) {
      target = value;
      return;
    }
    expected += cat(expected.empty() ? "\"" : " or \"", text, '"');
  }
  fields.problem(key, expected);
}

class RecipeReader {
 public:
  RecipeReader(const json& root, const std::string& origin, RunKind kind)
      : root_(root), base_(folder_of(origin)), fields_(&root, "", problems_) {
    recipe_.origin = origin;
    recipe_.kind = kind;
    recipe_.mxfp4_experts = recipe_.require_loss_mask = kind == RunKind::kSft;
  }

  Result<Recipe> read() {
    refuse_unknown(&root_, "",
                   {"run",
                    "model",
                    "tokenizer",
                    "init",
                    "data",
                    "curriculum",
                    "validation",
                    "batch_tokens",
                    "micro_batch_tokens",
                    "optimizer",
                    "compute",
                    "mxfp4_experts",
                    "mxfp8_activations",
                    "mtp_loss_weight",
                    "balancing",
                    "recompute_sublayers",
                    "chunk_size",
                    "seed",
                    "require_loss_mask",
                    "checkpoint",
                    "log_every_steps",
                    "explode_factor"},
                   problems_);
    read_init();
    read_paths();
    read_data();
    read_curriculum();
    read_validation();
    read_batch();
    read_optimizer();
    read_rest();
    TANDEM_RETURN_IF_ERROR(problems_.to_status(recipe_.origin));
    return std::move(recipe_);
  }

 private:
  const json* find(std::string_view key) const { return fields_.find(key); }

  void expect_file(std::string_view key, const std::string& path) {
    std::error_code error;
    if (!fs::is_regular_file(path, error)) problems_.add(key, "a file", cat("nothing at ", path));
  }

  void read_init() {
    const JsonFields init = fields_.object("init");
    refuse_unknown(find("init"), "init", {"seed", "from"}, problems_);
    if (const auto seed = init.integer("seed", {0, INT64_MAX})) recipe_.init_seed = static_cast<uint64_t>(*seed);
    if (const auto from = init.text("from")) {
      recipe_.init_from = absolute_path(base_, *from);
      expect_file("init.from", *recipe_.init_from + "/config.json");
    } else if (recipe_.kind == RunKind::kSft && !init.has("from")) {
      init.problem("from", "the run or model folder that fine-tuning starts from");
    }
    if (init.has("seed") && init.has("from")) init.problem("seed", "one of seed and from", "both");
  }

  void read_paths() {
    if (const auto run = fields_.text("run")) {
      recipe_.run = absolute_path(base_, *run);
    } else if (!fields_.has("run")) {
      fields_.problem("run", "the folder of the run");
    }
    if (const auto model = fields_.text("model")) {
      recipe_.model = absolute_path(base_, *model);
      expect_file("model", recipe_.model);
    } else if (recipe_.init_from) {
      recipe_.model = *recipe_.init_from + "/config.json";
    } else if (!fields_.has("model")) {
      fields_.problem("model", "the path of a config.json");
    }
    if (const auto tokenizer = fields_.text("tokenizer")) {
      recipe_.tokenizer = absolute_path(base_, *tokenizer);
      expect_file("tokenizer", recipe_.tokenizer + "/tiktoken.model");
      expect_file("tokenizer", recipe_.tokenizer + "/tokenizer_config.json");
    } else if (recipe_.init_from) {
      std::error_code error;
      if (fs::exists(*recipe_.init_from + "/tiktoken.model", error)) recipe_.tokenizer = *recipe_.init_from;
    }
    refuse_run_in("init.from", recipe_.init_from.value_or(""));
    refuse_run_in("tokenizer", recipe_.tokenizer);
  }

  // A run that starts anew clears its folder.
  void refuse_run_in(std::string_view key, const std::string& folder) {
    std::error_code ignored;
    if (folder.empty() || !fs::equivalent(recipe_.run, folder, ignored)) return;
    problems_.add("run", cat("another folder than that of ", key), recipe_.run);
  }

  void add_shards(const std::string& key, const std::string& pattern, std::vector<std::string>& shards) {
    const std::string path = absolute_path(base_, pattern);
    glob_t found = {};
    if (::glob(path.c_str(), 0, nullptr, &found) == 0) {
      shards.insert(shards.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
    } else {
      problems_.add(key, "token shards", cat("nothing at ", path));
    }
    ::globfree(&found);
  }

  void read_data() {
    const json* data = find("data");
    if (data == nullptr || !data->is_object() || data->empty()) {
      return fields_.problem("data", "an object of names and lists of token shards");
    }
    for (const auto& [name, patterns] : data->items()) {
      const std::string key = cat("data.", name);
      std::vector<std::string>& shards = recipe_.data[name];
      if (!patterns.is_array() || patterns.empty()) {
        problems_.add(key, "a list of paths or globs", describe(patterns));
        continue;
      }
      for (size_t i = 0; i < patterns.size(); ++i) {
        if (patterns[i].is_string()) {
          add_shards(key, patterns[i].get<std::string>(), shards);
        } else {
          problems_.add(cat(key, '.', i), "a path or a glob", describe(patterns[i]));
        }
      }
    }
  }

  // Of a stage or the validation.
  void read_sequences(const JsonFields& fields, std::string& data, int64_t& length, PackMode& pack) {
    if (const auto name = fields.text("data")) {
      data = *name;
      if (!recipe_.data.contains(data)) fields.problem("data", "a name under data");
    } else if (!fields.has("data")) {
      fields.problem("data", "a name under data");
    }
    length = required_count(fields, "length", {2, kMaxLength});
    choice<PackMode>(fields, "pack", {{"stream", PackMode::kStream}, {"documents", PackMode::kWholeDocuments}}, pack);
  }

  void read_curriculum() {
    const json* stages = find("curriculum");
    if (stages == nullptr || !stages->is_array() || stages->empty()) {
      return fields_.problem("curriculum", "a list of stages");
    }
    for (size_t i = 0; i < stages->size(); ++i) {
      const std::string path = cat("curriculum.", i);
      const json& item = (*stages)[i];
      if (!item.is_object()) {
        problems_.add(path, "an object", describe(item));
        continue;
      }
      refuse_unknown(&item, path, {"data", "length", "tokens", "pack"}, problems_);
      const JsonFields fields(&item, path, problems_);
      RecipeStage stage;
      read_sequences(fields, stage.data, stage.length, stage.pack);
      stage.tokens = required_count(fields, "tokens", {1, kMaxTokens});
      recipe_.curriculum.push_back(std::move(stage));
    }
  }

  void read_validation() {
    if (!fields_.has("validation")) return;
    const JsonFields fields = fields_.object("validation");
    refuse_unknown(find("validation"), "validation", {"data", "length", "sequences", "every_steps", "pack"}, problems_);
    RecipeValidation validation;
    read_sequences(fields, validation.data, validation.length, validation.pack);
    assign(validation.sequences, count(fields, "sequences", {1, kMaxLength}));
    assign(validation.every_steps, count(fields, "every_steps", {1, kMaxSteps}));
    recipe_.validation = std::move(validation);
  }

  void read_batch() {
    recipe_.batch_tokens = required_count(fields_, "batch_tokens", {2, int64_t{1} << 40});
    for (size_t i = 0; i < recipe_.curriculum.size() && recipe_.batch_tokens > 0; ++i) {
      const int64_t length = recipe_.curriculum[i].length;
      if (length > 0 && recipe_.batch_tokens % length != 0) {
        problems_.add(cat("curriculum.", i, ".length"),
                      cat("a length that divides batch_tokens, ", recipe_.batch_tokens), cat(length));
      }
    }
    recipe_.micro_batch_tokens = recipe_.batch_tokens;
    assign(recipe_.micro_batch_tokens, count(fields_, "micro_batch_tokens", {1, int64_t{1} << 40}));
    if (recipe_.micro_batch_tokens < recipe_.longest_length()) {
      fields_.problem("micro_batch_tokens", cat("at least the longest length, ", recipe_.longest_length()));
    }
  }

  void read_optimizer() {
    const JsonFields fields = fields_.object("optimizer");
    refuse_unknown(find("optimizer"), "optimizer",
                   {"learning_rate", "warmup_share", "final_share", "weight_decay", "clip_norm", "muon_momentum"},
                   problems_);
    RecipeOptimizer& o = recipe_.optimizer;
    if (!fields.has("learning_rate")) fields.problem("learning_rate", "a number above 0");
    assign(o.learning_rate, fields.positive_number("learning_rate"));
    number_between(fields, "warmup_share", 0, 1, o.warmup_share);
    number_between(fields, "final_share", 0, 1, o.final_share);
    number_between(fields, "weight_decay", 0, 100, o.weight_decay);
    assign(o.clip_norm, fields.positive_number("clip_norm"));
    number_between(fields, "muon_momentum", 0, 0.9999, o.muon_momentum);
  }

  void read_rest() {
    ComputeType compute = ComputeType::kFp32;
    choice<ComputeType>(fields_, "compute", {{"bf16", ComputeType::kBf16}, {"fp32", ComputeType::kFp32}}, compute);
    if (fields_.has("compute")) recipe_.compute = compute;
    choice<BalancingKind>(
        fields_, "balancing",
        {{"histogram", BalancingKind::kHistogram}, {"exact", BalancingKind::kExact}, {"none", BalancingKind::kNone}},
        recipe_.balancing);
    assign(recipe_.mxfp4_experts, fields_.boolean("mxfp4_experts"));
    assign(recipe_.mxfp8_activations, fields_.boolean("mxfp8_activations"));
    if (fields_.has("mtp_loss_weight")) {
      number_between(fields_, "mtp_loss_weight", 0, 100, recipe_.mtp_loss_weight.emplace());
    }
    assign(recipe_.recompute_sublayers, fields_.boolean("recompute_sublayers"));
    assign(recipe_.require_loss_mask, fields_.boolean("require_loss_mask"));
    assign(recipe_.chunk_size, fields_.integer("chunk_size", {16, 4096}));
    if ((recipe_.chunk_size & (recipe_.chunk_size - 1)) != 0) {
      fields_.problem("chunk_size", "a power of two from 16 to 4096");
    }
    const JsonFields checkpoint = fields_.object("checkpoint");
    refuse_unknown(find("checkpoint"), "checkpoint", {"every_steps", "keep"}, problems_);
    assign(recipe_.checkpoint_every_steps, count(checkpoint, "every_steps", {1, kMaxSteps}));
    assign(recipe_.checkpoint_keep, checkpoint.integer("keep", {1, 1000000}));
    assign(recipe_.log_every_steps, count(fields_, "log_every_steps", {1, kMaxSteps}));
    number_between(fields_, "explode_factor", 1, 1e30, recipe_.explode_factor);
    if (const auto seed = fields_.integer("seed", {0, INT64_MAX})) recipe_.seed = static_cast<uint64_t>(*seed);
  }

  const json& root_;
  fs::path base_;
  ConfigProblems problems_;
  JsonFields fields_;
  Recipe recipe_;
};

}  // namespace

int64_t Recipe::longest_length() const {
  int64_t longest = validation ? validation->length : 0;
  for (const RecipeStage& stage : curriculum) longest = std::max(longest, stage.length);
  return longest;
}

Result<Recipe> load_recipe(const std::string& path, RunKind kind, std::span<const std::string> overrides) {
  const Result<std::string> text = read_file(path, "a training recipe", kMaxRecipeBytes);
  if (!text.is_ok()) return text.status();
  json root = json::parse(text.value(), nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) {
    return Status::invalid(
        cat(path, ": expected a JSON object, found ", root.is_discarded() ? "no JSON" : describe(root)));
  }
  for (const std::string& override_text : overrides) TANDEM_RETURN_IF_ERROR(apply_override(root, override_text));
  return RecipeReader(root, path, kind).read();
}

}  // namespace tandem::train
