// Why a request was or will be served from the cache, or not.
#include <utility>

#include "base/cat.h"
#include "server/cache_report.h"
#include "server/chat_prompt.h"
#include "server/field_reader.h"
#include "server/routes.h"
#include "text/field.h"
#include "text/tool_results.h"

namespace tandem {
namespace {

// Of each message as rendered, its number in the request: K3 shows tool results in the order of their calls, K2 puts a
// system prompt of its own (-1) in front of a conversation without one.
std::vector<int64_t> rendered_numbers(const ChatRequest& request, ChatFormat format) {
  std::vector<Message> numbered = request.messages;
  for (size_t i = 0; i < numbered.size(); ++i) {
    numbered[i].content.assign(1, ContentPart());
    numbered[i].content[0].width = static_cast<int64_t>(i);
  }
  std::vector<int64_t> numbers;
  if (format == ChatFormat::kXtml) {
    numbered = order_tool_results(std::move(numbered));
  } else if (numbered.empty() || numbered[0].role != Role::kSystem) {
    numbers.push_back(-1);
  }
  for (const Message& message : numbered) numbers.push_back(message.content[0].width);
  return numbers;
}

struct LintAsk {
  std::vector<TokenId> prompt;
  std::vector<int64_t> message_numbers;
  CacheScope scope;
};

Status read_raw_prompt(const JsonValue& body, const ApiContext& context, LintAsk& ask) {
  FieldReader fields(body);
  const bool parses_special = fields.flag("parse_special", false);
  TANDEM_RETURN_IF_ERROR(fields.status());
  const JsonValue* prompt = body.find_set("prompt");
  if (prompt != nullptr && prompt->is_string()) {
    const Tokenizer& tokenizer = context.tokenizer;
    ask.prompt = parses_special ? tokenizer.encode_control(prompt->text()) : tokenizer.encode_text(prompt->text());
    return Status::ok();
  }
  if (prompt == nullptr || !prompt->is_array())
    return bad_field("prompt", "a string or a list of token ids, or messages instead", prompt);
  auto ids = read_token_ids(*prompt, "prompt", context.engine.facts().vocab_size);
  if (!ids.is_ok()) return ids.status();
  ask.prompt = std::move(ids).value();
  return Status::ok();
}

Result<LintAsk> read_lint(const JsonValue& body, const ApiContext& context) {
  LintAsk ask;
  FieldReader fields(body);
  ask.scope.salt = fields.string("cache_salt").value_or("");
  TANDEM_RETURN_IF_ERROR(fields.status());
  if (body.find_set("messages") == nullptr) {
    TANDEM_RETURN_IF_ERROR(read_raw_prompt(body, context, ask));
  } else {
    auto prompt = read_chat_prompt(body, context);
    if (!prompt.is_ok()) return prompt.status();
    ask.prompt = std::move(prompt.value().ids);
    ask.message_numbers = rendered_numbers(prompt.value().request, prompt.value().format);
  }
  if (ask.prompt.empty()) return Status::invalid("prompt: expected at least one token, found none");
  return ask;
}

}  // namespace

void explain_cache(RouteCall call) {
  const auto explained = call.context->engine.explain(call.tail, call.owner);
  if (explained.is_ok()) return call.respond(explanation_json(explained.value(), *call.context, "cache.explanation"));
  ApiError error;
  error.status = 404;
  error.type = "not_found_error";
  error.message =
      cat("No request \"", call.tail, "\" is known: ids are those of replies, and only the latest are kept");
  call.respond(error);
}

void lint_cache(RouteCall call) {
  std::string model;
  const auto body = read_body(call, model);
  if (!body) return;
  auto ask = read_lint(*body, *call.context);
  if (!ask.is_ok()) return call.respond(bad_request(ask.status()));
  LintAsk lint = std::move(ask).value();
  lint.scope.owner = call.owner;
  const auto explained = call.context->engine.lint(std::move(lint.prompt), lint.scope);
  if (!explained.is_ok()) {
    return call.respond(submit_error(explained.status(), call.context->options.retry_after_seconds));
  }
  call.respond(explanation_json(explained.value(), *call.context, "cache.lint", std::move(lint.message_numbers)));
}

}  // namespace tandem
