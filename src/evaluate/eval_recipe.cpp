#include "evaluate/eval_recipe.h"

#include <glob.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/cat.h"
#include "text/field.h"
#include "text/json_value.h"

namespace tandem {
namespace {

constexpr int64_t kMaxCases = 1'000'000;
constexpr int64_t kMaxTokens = int64_t{1} << 24;

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<ChatFamily> family_named(std::string_view name) {
  for (int i = 0; i < kNumChatFamilies; ++i) {
    if (chat_family_name(static_cast<ChatFamily>(i)) == name) return static_cast<ChatFamily>(i);
  }
  return std::nullopt;
}

std::string family_names() {
  std::string names;
  for (int i = 0; i < kNumChatFamilies; ++i) {
    names += cat(names.empty() ? "" : ", ", chat_family_name(static_cast<ChatFamily>(i)));
  }
  return names;
}

class RecipeReader {
 public:
  RecipeReader(std::string_view origin, const std::string& folder) : origin_(origin), folder_(folder) {}

  Result<EvalRecipe> read(const JsonValue& root) {
    TANDEM_RETURN_IF_ERROR(check_keys(
        root, "", {"seed", "batch", "trained_length", "law_tokens", "prose", "gap_prose", "families", "recall"}));
    int64_t seed = 1;
    TANDEM_RETURN_IF_ERROR(integer(root, "seed", 0, INT64_MAX, seed));
    recipe_.seed = static_cast<uint64_t>(seed);
    TANDEM_RETURN_IF_ERROR(integer(root, "batch", 1, 4096, recipe_.batch));
    TANDEM_RETURN_IF_ERROR(integer(root, "law_tokens", 0, kMaxTokens, recipe_.law_tokens));
    int64_t trained_length = 0;
    TANDEM_RETURN_IF_ERROR(integer(root, "trained_length", 1, kMaxTokens, trained_length));
    if (trained_length > 0) recipe_.trained_length = trained_length;
    TANDEM_RETURN_IF_ERROR(paths(root, "gap_prose", recipe_.gap_prose));
    if (const JsonValue* prose = root.find_set("prose")) TANDEM_RETURN_IF_ERROR(read_prose(*prose));
    if (const JsonValue* families = root.find_set("families")) TANDEM_RETURN_IF_ERROR(read_families(*families));
    if (const JsonValue* recall = root.find_set("recall")) TANDEM_RETURN_IF_ERROR(read_recall(*recall));
    if (recipe_.prose_files.empty() && recipe_.chats.empty() && recipe_.law_tokens == 0) {
      return Status::invalid(cat(origin_, ": expected something to measure: prose, law_tokens, families or recall"));
    }
    std::ranges::stable_sort(recipe_.chats, [](const FamilyCases& a, const FamilyCases& b) {
      return std::pair(a.family, a.distance_tokens.value_or(0)) < std::pair(b.family, b.distance_tokens.value_or(0));
    });
    return std::move(recipe_);
  }

 private:
  Status bad(std::string_view path, std::string_view expected, const JsonValue* found) const {
    const Status status = bad_field(path, expected, found);
    return Status::invalid(cat(origin_, ": ", status.message()));
  }

  Status check_keys(const JsonValue& object, std::string_view path,
                    std::initializer_list<std::string_view> known) const {
    if (!object.is_object()) return bad(path.empty() ? "the recipe" : path, "an object", &object);
    for (const auto& member : object.members()) {
      if (std::ranges::find(known, member.first) != known.end()) continue;
      std::string names;
      for (const std::string_view name : known) names += cat(names.empty() ? "" : ", ", name);
      return Status::invalid(
          cat(origin_, ": ", path, path.empty() ? "" : ".", member.first, ": unknown key, expected one of ", names));
    }
    return Status::ok();
  }

  Status integer(const JsonValue& object, std::string_view key, int64_t low, int64_t high, int64_t& value) const {
    const JsonValue* found = object.find_set(key);
    if (found == nullptr) return Status::ok();
    const auto number = found->kind() == JsonKind::kNumber ? parse_integer(found->text()) : std::nullopt;
    if (!number || *number < low || *number > high) {
      return bad(key, cat("an integer from ", low, " to ", high), found);
    }
    value = *number;
    return Status::ok();
  }

  Status paths(const JsonValue& object, std::string_view key, std::vector<std::string>& out) const {
    const JsonValue* found = object.find_set(key);
    if (found == nullptr) return Status::ok();
    if (!found->is_array()) return bad(key, "a list of paths", found);
    for (const JsonValue& item : found->items()) {
      if (!item.is_string() || item.text().empty()) return bad(key, "a list of paths", &item);
      out.push_back((std::filesystem::path(folder_) / item.text()).lexically_normal().string());
    }
    return Status::ok();
  }

  Status read_prose(const JsonValue& prose) {
    TANDEM_RETURN_IF_ERROR(check_keys(prose, "prose", {"files", "max_bytes", "window_tokens", "context_tokens"}));
    TANDEM_RETURN_IF_ERROR(paths(prose, "files", recipe_.prose_files));
    TANDEM_RETURN_IF_ERROR(integer(prose, "max_bytes", 1, int64_t{1} << 40, recipe_.prose_max_bytes));
    TANDEM_RETURN_IF_ERROR(integer(prose, "window_tokens", 2, kMaxTokens, recipe_.prose.window_tokens));
    TANDEM_RETURN_IF_ERROR(integer(prose, "context_tokens", 1, kMaxTokens, recipe_.prose.context_tokens));
    if (recipe_.prose.context_tokens >= recipe_.prose.window_tokens) {
      return Status::invalid(cat(origin_, ": prose.context_tokens: expected less than window_tokens, ",
                                 recipe_.prose.window_tokens, ", found ", recipe_.prose.context_tokens));
    }
    return Status::ok();
  }

  Status read_families(const JsonValue& families) {
    if (!families.is_object()) return bad("families", "an object of numbers of cases", &families);
    for (const auto& [name, count] : families.members()) {
      const auto family = family_named(name);
      if (!family) {
        return Status::invalid(cat(origin_, ": families.", name, ": expected one of ", family_names()));
      }
      FamilyCases cases{*family, 0, std::nullopt};
      TANDEM_RETURN_IF_ERROR(integer(families, name, 0, kMaxCases, cases.cases));
      if (cases.cases > 0) recipe_.chats.push_back(cases);
    }
    return Status::ok();
  }

  Status read_recall(const JsonValue& recall) {
    if (!recall.is_object()) return bad("recall", "an object of numbers of cases by distance", &recall);
    for (const auto& member : recall.members()) {
      const auto distance = parse_integer(member.first);
      if (!distance || *distance < 0 || *distance > kMaxTokens) {
        return Status::invalid(
            cat(origin_, ": recall.", member.first, ": expected a distance in tokens as the key, up to ", kMaxTokens));
      }
      FamilyCases cases{ChatFamily::kRecall, 0, distance};
      TANDEM_RETURN_IF_ERROR(integer(recall, member.first, 0, kMaxCases, cases.cases));
      if (cases.cases > 0) recipe_.chats.push_back(cases);
    }
    return Status::ok();
  }

  std::string_view origin_;
  const std::string& folder_;
  EvalRecipe recipe_;
};

}  // namespace

std::string FamilyCases::name() const {
  const std::string_view family_name = chat_family_name(family);
  return distance_tokens ? cat(family_name, "@", *distance_tokens) : std::string(family_name);
}

Result<EvalRecipe> parse_eval_recipe(std::string_view json_text, std::string_view origin, const std::string& folder) {
  const auto root = parse_json(json_text, origin);
  if (!root.is_ok()) return root.status();
  return RecipeReader(origin, folder).read(root.value());
}

Status keep_only(EvalRecipe& recipe, const std::vector<std::string>& names) {
  const auto is_wanted = [&](std::string_view name) { return std::ranges::find(names, name) != names.end(); };
  std::vector<std::string> known = {"prose", "laws"};
  for (const FamilyCases& cases : recipe.chats) {
    for (std::string name : {std::string(chat_family_name(cases.family)), cases.name()}) {
      if (std::ranges::find(known, name) == known.end()) known.push_back(std::move(name));
    }
  }
  for (const std::string& name : names) {
    if (std::ranges::find(known, name) != known.end()) continue;
    std::string list;
    for (const std::string& item : known) list += cat(list.empty() ? "" : ", ", item);
    return Status::invalid(cat("--only ", name, ": expected what the recipe measures: ", list));
  }
  std::erase_if(recipe.chats, [&](const FamilyCases& cases) {
    return !is_wanted(cases.name()) && !is_wanted(chat_family_name(cases.family));
  });
  if (!is_wanted("prose") && !is_wanted("laws")) recipe.prose_files.clear();
  if (!is_wanted("laws")) recipe.law_tokens = 0;
  recipe.score_prose = is_wanted("prose");
  return Status::ok();
}

std::vector<std::string> matching_files(const std::vector<std::string>& patterns) {
  std::vector<std::string> files;
  for (const std::string& pattern : patterns) {
    glob_t found = {};
    if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
      for (size_t i = 0; i < found.gl_pathc; ++i) {
        const std::string path = found.gl_pathv[i];
        std::error_code ignored;
        const bool is_file = std::filesystem::is_regular_file(path, ignored);
        if (is_file && std::ranges::find(files, path) == files.end()) files.push_back(path);
      }
    }
    ::globfree(&found);
  }
  return files;
}

}  // namespace tandem
