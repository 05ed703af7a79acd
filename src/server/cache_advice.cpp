#include "server/cache_advice.h"

#include <algorithm>
#include <utility>

#include "base/cat.h"
#include "base/utf8.h"
#include "server/cache_report.h"
#include "text/json_value.h"
#include "text/reply_builder.h"
#include "text/unicode_classes.h"

namespace tandem {
namespace {

constexpr size_t kShownBytes = 48;

// 1920 → "1,920".
std::string grouped(int64_t number) {
  std::string digits = cat(number);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(digits.begin() + at, ',');
  }
  return digits;
}

std::string shown(std::string_view text) {
  std::string out = replace_invalid_utf8(text.substr(0, kShownBytes));
  while (text.size() > kShownBytes && out.ends_with(kReplacementCharacter))
    out.resize(out.size() - kReplacementCharacter.size());
  return text.size() > kShownBytes ? out + "…" : out;
}

// One side of a divergence: the element it lies in and the element's text from there on and before.
struct Side {
  PromptPlace place;
  std::string before;
  std::string rest;
  bool ends = false;  // `rest` reaches the end of the element
  bool is_at_start() const { return before.empty(); }
};

bool is_text(const Tokenizer& tokenizer, TokenId id) { return tokenizer.contains(id) && !tokenizer.is_control(id); }

Side side_of(const ExplainedPrompt& explained, const std::vector<TokenId>& prompt, int64_t position) {
  const PromptMap map(explained.tokenizer, explained.format, prompt, explained.message_numbers);
  Side side;
  side.place = map.at(position);
  for (int64_t i = side.place.body_begin; i < position; ++i) {
    const TokenId id = prompt[static_cast<size_t>(i)];
    if (is_text(explained.tokenizer, id)) side.before += explained.tokenizer.token_bytes(id);
  }
  auto at = static_cast<size_t>(position);
  for (; at < prompt.size() && is_text(explained.tokenizer, prompt[at]); ++at) {
    side.rest += explained.tokenizer.token_bytes(prompt[at]);
  }
  side.ends = at < prompt.size();
  return side;
}

std::string without_space(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = decode_utf8(text.substr(at));
    if (!step.valid || !is_white_space(step.code_point)) out += text.substr(at, step.size);
    at += step.size;
  }
  return out;
}

bool differs_in_space_only(const Side& found, const Side& expected) {
  constexpr size_t kEnough = 8;  // characters that agree, when an end is not in sight
  const std::string a = without_space(found.rest);
  const std::string b = without_space(expected.rest);
  const size_t common = static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size())), b.begin()).first -
      a.begin());
  if (found.ends && expected.ends && a == b) return true;
  const bool one_runs_out = common == std::min(a.size(), b.size());
  return one_runs_out && common >= kEnough && found.rest != expected.rest;
}

// The run of digits and what separates them in times, around the divergence.
std::string number_run(const Side& side) {
  constexpr std::string_view kParts = "0123456789:.-/+TZ";
  const size_t begin = side.before.find_last_not_of(kParts);
  const std::string head = side.before.substr(begin == std::string::npos ? 0 : begin + 1);
  return head + side.rest.substr(0, side.rest.find_first_not_of(kParts));
}

bool looks_like_time(std::string_view run) {
  const auto digits = std::count_if(run.begin(), run.end(), [](char c) { return c >= '0' && c <= '9'; });
  const bool has_separator = run.find_first_of(":-/.") != std::string_view::npos;
  constexpr int kEpochDigits = 9;
  return (digits >= 4 && has_separator) || digits >= kEpochDigits;
}

// Names of the tools declared in a prompt's declaration, in order.
std::vector<std::string> declared_names(std::string_view json) {
  std::vector<std::string> names;
  constexpr std::string_view kKey = "\"name\":\"";
  for (size_t at = json.find(kKey); at != std::string_view::npos; at = json.find(kKey, at)) {
    at += kKey.size();
    const size_t end = json.find('"', at);
    if (end == std::string_view::npos) break;
    names.emplace_back(json.substr(at, end - at));
  }
  return names;
}

// The tool whose declaration the expected text goes on with stands elsewhere in the prompt's own list.
bool is_other_order(const Side& found, const Side& expected) {
  const auto own = declared_names(found.before + found.rest);
  const auto cached = declared_names(expected.before + expected.rest);
  for (size_t i = 0; i < std::min(own.size(), cached.size()); ++i) {
    if (own[i] == cached[i]) continue;
    return std::find(own.begin(), own.end(), cached[i]) != own.end();
  }
  return false;
}

struct Finding {
  EditCause cause;
  std::string what;  // behind the field's name
  std::string edit;  // in the imperative
};

Finding text_finding(const Side& found, const Side& expected) {
  const std::string pair = cat("\"", shown(found.rest), "\" where the cached one has \"", shown(expected.rest), "\"");
  if (looks_like_time(number_run(found)) && looks_like_time(number_run(expected))) {
    return {
        EditCause::kTimestamp,
        cat("a time or counter, ", shown(number_run(found)), " where the cached one has ", shown(number_run(expected))),
        "keep it fixed, or move it behind the part that stays the same"};
  }
  if (differs_in_space_only(found, expected)) {
    return {EditCause::kWhiteSpace, "only white space differs from the cached text",
            "send the text back as it was, untrimmed"};
  }
  if (found.place.part == PromptPart::kContent && found.place.role == "system") {
    return {EditCause::kSystemPrompt, cat("the system prompt changed: ", pair),
            "send the same system prompt, and put what changes behind it"};
  }
  return {EditCause::kText, cat("the text differs: ", pair), "send the cached text back unchanged"};
}

Finding reasoning_finding(const Side& found, const Side& expected) {
  const bool found_none = found.is_at_start() && found.rest.empty();
  const bool expected_none = expected.is_at_start() && expected.rest.empty();
  if (found_none && !expected_none) {
    return {EditCause::kStrippedReasoning,
            cat("the cached conversation has reasoning text here (\"", shown(expected.rest), "\") and yours has none"),
            "send reasoning_content back"};
  }
  if (expected_none && !found_none) {
    return {EditCause::kOtherReasoning, "the cached conversation has no reasoning here and yours has some",
            "leave reasoning_content out"};
  }
  Finding finding = text_finding(found, expected);
  if (finding.cause == EditCause::kText) finding.cause = EditCause::kOtherReasoning;
  return finding;
}

Finding tools_finding(const Side& found, const Side& expected) {
  const bool here = found.place.part == PromptPart::kTools;
  const bool cached = expected.place.part == PromptPart::kTools;
  if (!here)
    return {EditCause::kTools, "the cached prompt declares tools and yours declares none",
            "declare the same tools, whether they are used or not"};
  if (!cached)
    return {EditCause::kTools, "your prompt declares tools and the cached one declares none",
            "leave them out, or add them later in a system message with tools"};
  if (is_other_order(found, expected)) {
    return {EditCause::kToolsOrder, "the same tools stand in another order", "send them in the cached order"};
  }
  return {
      EditCause::kTools,
      cat("a declaration differs: \"", shown(found.rest), "\" where the cached one has \"", shown(expected.rest), "\""),
      "send the same declarations, and add new tools later in a system message with tools"};
}

Finding effort_finding(const Side& found, const Side& expected) {
  const bool here = found.place.part == PromptPart::kEffort;
  const bool cached = expected.place.part == PromptPart::kEffort;
  if (here && cached) {
    return {EditCause::kEffort,
            cat("the thinking effort changed: \"", shown(found.rest), "\" where the cached prompt has \"",
                shown(expected.rest), "\""),
            "keep one effort over a conversation"};
  }
  return {EditCause::kEffort,
          here ? "thinking is on and was off in the cached conversation"
               : "thinking is off and was on in the cached conversation",
          "keep thinking as it was (a named tool_choice switches it off)"};
}

Finding find_cause(const Side& found, const Side& expected) {
  const auto either = [&](PromptPart part) { return found.place.part == part || expected.place.part == part; };
  if (either(PromptPart::kTools)) return tools_finding(found, expected);
  if (either(PromptPart::kEffort)) return effort_finding(found, expected);
  if (found.place.part != expected.place.part || found.place.message != expected.place.message ||
      found.place.part == PromptPart::kHeader) {
    const std::string_view own = found.place.role.empty() ? "another" : std::string_view(found.place.role);
    const std::string_view cached = expected.place.role.empty() ? "another" : std::string_view(expected.place.role);
    const std::string what = own == cached ? cat("your prompt goes on with ", found.place.field(),
                                                 " where the cached one goes on with ", expected.place.field())
                                           : cat("your prompt has a message of role ", own,
                                                 " where the cached one has one of role ", cached);
    return {EditCause::kRoles, what, "send the conversation's messages back whole, in their order"};
  }
  switch (found.place.part) {
    case PromptPart::kReasoning: return reasoning_finding(found, expected);
    case PromptPart::kToolCall: {
      Finding finding = text_finding(found, expected);
      if (finding.cause == EditCause::kText) {
        finding = {EditCause::kToolCall,
                   cat("the call differs: \"", shown(found.rest), "\" where the cached one has \"",
                       shown(expected.rest), "\""),
                   "send tool_calls back as they were returned"};
      }
      return finding;
    }
    default: return text_finding(found, expected);
  }
}

// Whether the cause is a mistake whoever the cached conversation belongs to. The others only compare two texts, which
// may have nothing to do with each other.
bool is_certain(EditCause cause) {
  return cause == EditCause::kStrippedReasoning || cause == EditCause::kEffort || cause == EditCause::kTools ||
         cause == EditCause::kToolsOrder;
}

// The hit is looked for within the length of the prompt as it was sent; an edit may make it longer.
std::string why_nothing_is_saved(const PrefixMatch& match) {
  const int64_t unit = std::max<int64_t>(1, match.hash_unit);
  const int64_t most = (match.prompt_tokens - 1) / unit * unit;
  if (most <= match.hit_tokens) {
    return cat("; nothing is saved now, because what is left of the prompt is shorter than a unit of ",
               grouped(match.hash_unit), " tokens");
  }
  return cat("; nothing is saved now, because no state of the cached conversation lies between tokens ",
             grouped(match.hit_tokens), " and ", grouped(most));
}

CacheAdvice advice_without_divergence(const PrefixMatch& match) {
  CacheAdvice advice;
  switch (main_reason(match)) {
    case MissReason::kSalt:
      advice.cause = EditCause::kSalt;
      advice.field = "cache_salt";
      advice.message =
          "cache_salt: the same tokens are cached under another salt: send the salt they were computed under";
      break;
    case MissReason::kEvicted: advice.message = "nothing to edit: it was cached and has been evicted"; break;
    case MissReason::kNotYetWritten:
      advice.message =
          "nothing to edit: another request is computing this prefix now; sent after its first token, it is reused";
      break;
    case MissReason::kNoCheckpoint:
      advice.message = "nothing to edit: no recurrent state is kept behind the reused part";
      break;
    case MissReason::kQuarantined:
      advice.message = "nothing to edit: verification found the cached prefix wrong and put it away";
      break;
    case MissReason::kNeverSeen: advice.message = "nothing to edit: nothing longer was computed before"; break;
    case MissReason::kShorterThanUnit:
    case MissReason::kLastToken: advice.message = "nothing to edit: all that can be reused is reused"; break;
  }
  return advice;
}

}  // namespace

std::string_view edit_cause_name(EditCause cause) {
  switch (cause) {
    case EditCause::kNone: return "none";
    case EditCause::kStrippedReasoning: return "stripped_reasoning";
    case EditCause::kOtherReasoning: return "other_reasoning";
    case EditCause::kSystemPrompt: return "system_prompt";
    case EditCause::kToolsOrder: return "tools_order";
    case EditCause::kTools: return "tools";
    case EditCause::kEffort: return "thinking_effort";
    case EditCause::kTimestamp: return "timestamp";
    case EditCause::kWhiteSpace: return "white_space";
    case EditCause::kRoles: return "messages";
    case EditCause::kToolCall: return "tool_call";
    case EditCause::kText: return "text";
    case EditCause::kSalt: return "salt";
  }
  return "none";
}

CacheAdvice cache_advice(const ExplainedPrompt& explained) {
  const PrefixMatch& match = explained.match;
  if (!match.divergence || match.divergence->position >= static_cast<int64_t>(explained.prompt.size())) {
    return advice_without_divergence(match);
  }
  const int64_t position = match.divergence->position;
  // The cached prompt, as far as it is told: the common prefix, then what follows there.
  std::vector<TokenId> cached(explained.prompt.begin(), explained.prompt.begin() + position);
  const std::vector<TokenId>& follows = match.divergence->expected_tokens;
  if (follows.empty()) cached.push_back(match.divergence->expected);
  cached.insert(cached.end(), follows.begin(), follows.end());
  const Side found = side_of(explained, explained.prompt, position);
  const Side expected = side_of(explained, cached, position);
  const Finding finding = find_cause(found, expected);
  const bool saves = match.hit_without_divergence > match.hit_tokens;
  CacheAdvice advice;
  advice.found = shown(found.rest);
  advice.expected = shown(expected.rest);
  if (!saves && !is_certain(finding.cause)) {
    advice.message = "nothing to edit: no edit here would reuse more than is reused";
    return advice;
  }
  advice.cause = finding.cause;
  const auto either = [&](PromptPart part) { return found.place.part == part || expected.place.part == part; };
  advice.field = either(PromptPart::kTools)    ? "tools"
                 : either(PromptPart::kEffort) ? "reasoning_effort"
                                               : found.place.field();
  advice.message = cat(advice.field, ": ", finding.what, ": ", finding.edit);
  if (saves) {
    advice.message += cat(" and ", grouped(match.hit_without_divergence), " of ", grouped(match.prompt_tokens),
                          " tokens are reused, not ", grouped(match.hit_tokens));
  } else {
    advice.message += why_nothing_is_saved(match);
  }
  return advice;
}

}  // namespace tandem
