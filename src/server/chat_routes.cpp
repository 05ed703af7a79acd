// Chat requests: read, refuse or run.
#include <utility>

#include "base/cat.h"
#include "server/chat_run.h"
#include "server/field_reader.h"
#include "server/routes.h"

namespace tandem {
namespace {

// logprobs and top_logprobs of a chat.
Status read_logprobs(const JsonValue& body, GenerationOptions& options) {
  FieldReader fields(body);
  const bool wanted = fields.flag("logprobs", false);
  const auto top = fields.integer("top_logprobs", 0, kMaxLogprobs);
  TANDEM_RETURN_IF_ERROR(fields.status());
  if (top.value_or(0) > 0 && !wanted) {
    return Status::invalid("top_logprobs: expected logprobs to be true next to it, found it off");
  }
  if (wanted) options.logprobs = static_cast<int32_t>(top.value_or(0));
  return Status::ok();
}

Result<ChatAsk> read_ask(const JsonValue& body, const ApiContext& context) {
  ChatAsk ask;
  auto options = read_generation_options(body, context);
  if (!options.is_ok()) return options.status();
  ask.options = std::move(options).value();
  TANDEM_RETURN_IF_ERROR(read_logprobs(body, ask.options));
  if (context.options.strict_vendor) TANDEM_RETURN_IF_ERROR(check_strict_vendor(body, ask.options));
  FieldReader fields(body);
  ask.reading.include_reasoning = fields.flag("include_reasoning", true);
  ask.reading.separate_reasoning = fields.flag("separate_reasoning", true);
  TANDEM_RETURN_IF_ERROR(fields.status());
  auto prompt = read_chat_prompt(body, context);
  if (!prompt.is_ok()) return prompt.status();
  ask.prompt = std::move(prompt).value();
  return ask;
}

}  // namespace

void chat_completions(RouteCall call) {
  std::string model;
  const auto body = read_body(call, model);
  if (!body) return;
  auto read = read_ask(*body, *call.context);
  if (!read.is_ok()) return call.respond(bad_request(read.status()));
  ChatAsk ask = std::move(read).value();
  ask.model = std::move(model);
  ask.owner = call.owner;
  const auto prompt_tokens = static_cast<int64_t>(ask.prompt.ids.size());
  if (prompt_tokens >= call.context->context_limit()) {
    return call.respond(context_too_long(prompt_tokens, call.context->context_limit(), "messages"));
  }
  EngineRequest request = engine_request(ask.options, *call.context, ask.prompt.ids);
  request.scope.owner = ask.owner;
  auto run = ChatRun::create(call.exchange, call.context, std::move(ask));
  if (!run.is_ok()) return call.respond(bad_request(run.status()));
  std::vector<EngineRequest> requests;
  requests.push_back(std::move(request));
  run.value()->start(std::move(requests));
}

}  // namespace tandem
