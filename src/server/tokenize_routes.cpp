// Text to ids and back, and the text of a chat prompt, for people who want to look.
#include <utility>

#include "base/cat.h"
#include "base/utf8.h"
#include "server/chat_prompt.h"
#include "server/chat_run.h"
#include "server/field_reader.h"
#include "server/routes.h"
#include "text/field.h"
#include "text/reply_json.h"

namespace tandem {
namespace {

struct TokenizeAsk {
  std::vector<TokenId> ids;
  bool with_pieces = false;   // llama-server's form
  bool with_strings = false;  // vLLM's form
};

Result<TokenizeAsk> read_tokenize(const JsonValue& body, const ApiContext& context) {
  TokenizeAsk ask;
  FieldReader fields(body);
  fields.boolean("add_special_tokens");  // both add nothing: no format here begins with a token
  fields.boolean("add_special");
  const bool parses_special = fields.flag("parse_special", false);
  ask.with_pieces = fields.flag("with_pieces", false);
  ask.with_strings = fields.flag("return_token_strs", false);
  std::optional<std::string> text = fields.string("content");
  if (const auto prompt = fields.string("prompt"); !text) text = prompt;
  TANDEM_RETURN_IF_ERROR(fields.status());
  if (!text && body.find_set("messages") != nullptr) {
    auto prompt = read_chat_prompt(body, context);
    if (!prompt.is_ok()) return prompt.status();
    ask.ids = std::move(prompt.value().ids);
    return ask;
  }
  if (!text) return bad_field("prompt", "a string, or content or messages instead of it", nullptr);
  ask.ids = parses_special ? context.tokenizer.encode_control(*text) : context.tokenizer.encode_text(*text);
  return ask;
}

}  // namespace

void tokenize(RouteCall call) {
  std::string model;
  const auto body = read_body(call, model);
  if (!body) return;
  const auto ask = read_tokenize(*body, *call.context);
  if (!ask.is_ok()) return call.respond(bad_request(ask.status()));
  const std::vector<TokenId>& ids = ask.value().ids;
  const Tokenizer& tokenizer = call.context->tokenizer;
  std::string pieces;
  std::string strings;
  for (const TokenId id : ids) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (ask.value().with_pieces) {
      pieces += cat(pieces.empty() ? "" : ",", R"({"id":)", id.value, R"(,"piece":)", piece_json(bytes), "}");
    }
    if (ask.value().with_strings) {
      strings += cat(strings.empty() ? "\"" : ",\"", json_escaped(replace_invalid_utf8(bytes)), '"');
    }
  }
  call.respond(cat(R"({"count":)", ids.size(), R"(,"max_model_len":)", call.context->context_limit(), R"(,"tokens":)",
                   ask.value().with_pieces ? cat("[", pieces, "]") : token_ids_json(ids), R"(,"token_strs":)",
                   ask.value().with_strings ? cat("[", strings, "]") : "null", "}"));
}

void detokenize(RouteCall call) {
  std::string model;
  const auto body = read_body(call, model);
  if (!body) return;
  const JsonValue* tokens = body->find_set("tokens");
  if (tokens == nullptr || !tokens->is_array()) {
    return call.respond(bad_request(bad_field("tokens", "a list of token ids", tokens)));
  }
  const auto ids = read_token_ids(*tokens, "tokens", call.context->tokenizer.vocab_size());
  if (!ids.is_ok()) return call.respond(bad_request(ids.status()));
  const auto bytes = call.context->tokenizer.decode(ids.value(), false);
  if (!bytes.is_ok()) return call.respond(bad_request(bytes.status()));
  const std::string text = json_escaped(replace_invalid_utf8(bytes.value()));
  call.respond(cat(R"({"prompt":")", text, R"(","content":")", text, R"("})"));
}

void apply_template(RouteCall call) {
  std::string model;
  const auto body = read_body(call, model);
  if (!body) return;
  const auto prompt = read_chat_prompt(*body, *call.context);
  if (!prompt.is_ok()) return call.respond(bad_request(prompt.status()));
  call.respond(cat(R"({"prompt":")", json_escaped(joined_text(prompt.value().segments)), R"("})"));
}

}  // namespace tandem
