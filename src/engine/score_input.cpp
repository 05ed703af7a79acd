#include <nlohmann/json.hpp>
#include <set>

#include "base/cat.h"
#include "engine/score.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

void parse_prompt(const Json& entry, const std::string& where, std::set<std::string>& ids,
                  std::vector<ScorePrompt>& prompts, std::string& problems) {
  const auto problem = [&](const std::string& text) { problems += cat("\n", where, text); };
  if (!entry.is_object()) return problem(cat(": expected an object, found ", entry.type_name()));
  ScorePrompt prompt;
  if (!entry.contains("id") || !entry["id"].is_string() || entry["id"].get_ref<const std::string&>().empty()) {
    problem(".id: expected a non-empty string");
  } else {
    prompt.id = entry["id"].get<std::string>();
    if (!ids.insert(prompt.id).second) problem(cat(".id: \"", prompt.id, "\" is used twice"));
  }
  if (!entry.contains("tokens") || !entry["tokens"].is_array() || entry["tokens"].empty()) {
    return problem(".tokens: expected a non-empty list of token ids");
  }
  for (size_t i = 0; i < entry["tokens"].size(); ++i) {
    const Json& token = entry["tokens"][i];
    if (!token.is_number_integer() || token < 0 || token > INT32_MAX) {
      return problem(cat(".tokens[", i, "]: expected a token id, found ", token.dump()));
    }
    prompt.tokens.emplace_back(token.get<int32_t>());
  }
  prompts.push_back(std::move(prompt));
}

}  // namespace

Result<std::vector<ScorePrompt>> parse_score_input(std::string_view json_text, std::string_view origin) {
  const Json document = Json::parse(json_text, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) return Status::invalid(cat(origin, ": not valid JSON"));
  if (!document.is_object() || !document.contains("prompts") || !document["prompts"].is_array() ||
      document["prompts"].empty()) {
    return Status::invalid(
        cat(origin, ": expected {\"prompts\":[{\"id\":…,\"tokens\":[…]}]} with at least one prompt"));
  }
  std::vector<ScorePrompt> prompts;
  std::set<std::string> ids;
  std::string problems;
  for (size_t i = 0; i < document["prompts"].size(); ++i) {
    parse_prompt(document["prompts"][i], cat("prompts[", i, "]"), ids, prompts, problems);
  }
  if (!problems.empty()) return Status::invalid(cat(origin, ":", problems));
  return prompts;
}

}  // namespace tandem
