// Raw text requests: prompts without a chat format.
#include <utility>

#include "base/cat.h"
#include "server/completion_run.h"
#include "server/field_reader.h"
#include "server/routes.h"
#include "text/field.h"

namespace tandem {
namespace {

constexpr int64_t kDefaultMaxTokens = 16;  // OpenAI's
constexpr size_t kMaxPrompts = 1024;

// A string, a list of strings, a list of ids, a list of lists of ids.
Status read_prompts(const JsonValue& body, const ApiContext& context, std::vector<std::vector<TokenId>>& prompts) {
  constexpr std::string_view kExpected = "a string, a list of strings, a list of token ids or a list of such lists";
  FieldReader fields(body);
  const bool parses_special = fields.flag("parse_special", false);
  TANDEM_RETURN_IF_ERROR(fields.status());
  const Tokenizer& tokenizer = context.tokenizer;
  const auto encode = [&](const std::string& text) {
    prompts.push_back(parses_special ? tokenizer.encode_control(text) : tokenizer.encode_text(text));
  };
  const auto add_ids = [&](const JsonValue& list, std::string_view path) {
    auto ids = read_token_ids(list, path, context.engine.facts().vocab_size);
    if (!ids.is_ok()) return ids.status();
    prompts.push_back(std::move(ids).value());
    return Status::ok();
  };
  const JsonValue* prompt = body.find_set("prompt");
  if (prompt != nullptr && prompt->is_string()) {
    encode(prompt->text());
    return Status::ok();
  }
  if (prompt == nullptr || !prompt->is_array() || prompt->items().empty())
    return bad_field("prompt", kExpected, prompt);
  if (prompt->items()[0].kind() == JsonKind::kNumber) return add_ids(*prompt, "prompt");
  if (prompt->items().size() > kMaxPrompts) {
    return Status::invalid(cat("prompt: expected at most ", kMaxPrompts, " prompts, found ", prompt->items().size()));
  }
  for (size_t i = 0; i < prompt->items().size(); ++i) {
    const JsonValue& item = prompt->items()[i];
    if (item.is_string() && prompt->items()[0].is_string()) {
      encode(item.text());
    } else if (item.is_array() && prompt->items()[0].is_array()) {
      TANDEM_RETURN_IF_ERROR(add_ids(item, cat("prompt[", i, "]")));
    } else {
      return bad_field(cat("prompt[", i, "]"), kExpected, &item);
    }
  }
  return Status::ok();
}

Result<CompletionAsk> read_ask(const JsonValue& body, const ApiContext& context) {
  CompletionAsk ask;
  auto options = read_generation_options(body, context);
  if (!options.is_ok()) return options.status();
  ask.options = std::move(options).value();
  if (const JsonValue* suffix = body.find_set("suffix");
      suffix != nullptr && (!suffix->is_string() || !suffix->text().empty())) {
    return bad_field("suffix", "nothing: this model does not fill in the middle", suffix);
  }
  FieldReader fields(body);
  ask.echo = fields.flag("echo", false);
  const auto logprobs = fields.integer("logprobs", 0, kMaxLogprobs);
  if (logprobs) ask.options.logprobs = static_cast<int32_t>(*logprobs);
  const auto best_of = fields.integer("best_of", 1, INT64_MAX);
  if (best_of && *best_of != ask.options.num_candidates) {
    fields.refuse("best_of", cat("the same as n, ", ask.options.num_candidates));
  }
  TANDEM_RETURN_IF_ERROR(fields.status());
  if (!ask.options.max_tokens) ask.options.max_tokens = std::max(kDefaultMaxTokens, ask.options.min_tokens);
  TANDEM_RETURN_IF_ERROR(read_prompts(body, context, ask.prompts));
  for (size_t i = 0; i < ask.prompts.size(); ++i) {
    if (ask.prompts[i].empty()) {
      const std::string path = ask.prompts.size() == 1 ? "prompt" : cat("prompt[", i, "]");
      return Status::invalid(cat(path, ": expected at least one token, found none"));
    }
  }
  return ask;
}

}  // namespace

void completions(RouteCall call) {
  std::string model;
  const auto body = read_body(call, model);
  if (!body) return;
  auto read = read_ask(*body, *call.context);
  if (!read.is_ok()) return call.respond(bad_request(read.status()));
  CompletionAsk ask = std::move(read).value();
  ask.model = std::move(model);
  ask.owner = call.owner;
  std::vector<EngineRequest> requests;
  for (const std::vector<TokenId>& prompt : ask.prompts) {
    const auto size = static_cast<int64_t>(prompt.size());
    if (size >= call.context->context_limit()) {
      return call.respond(context_too_long(size, call.context->context_limit(), "prompt"));
    }
    requests.push_back(engine_request(ask.options, *call.context, prompt));
    requests.back().scope.owner = ask.owner;
    requests.back().prompt_logprobs = ask.echo && ask.options.logprobs.has_value();
  }
  CompletionRun::create(call.exchange, call.context, std::move(ask))->start(std::move(requests));
}

}  // namespace tandem
