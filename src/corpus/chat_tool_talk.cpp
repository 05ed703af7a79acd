// corpus/chat_tool_talk.cpp: conversations with declared tools: a call, an answer from a result, and a request that no
// tool can serve.
#include <algorithm>

#include "base/cat.h"
#include "corpus/chat_family.h"
#include "corpus/chat_tool_cases.h"
#include "text/json_format.h"

namespace tandem {
namespace {

// `count` different tools in a random order, none of them `without`; `with`, if any, is among them on top of `count`.
std::vector<const ToolKind*> draw_tools(ChatDraw& draw, size_t count, const ToolKind* with, const ToolKind* without) {
  std::vector<const ToolKind*> all;
  for (const ToolKind& kind : chat_tools()) {
    if (&kind != with && &kind != without) all.push_back(&kind);
  }
  const auto shuffle = [&](std::vector<const ToolKind*>& list) {
    for (size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[draw.below(i)]);
  };
  shuffle(all);
  all.resize(std::min(count, all.size()));
  if (with != nullptr) all.push_back(with);
  shuffle(all);
  return all;
}

void declare(ChatContext& context, ChatExample& example, const std::vector<const ToolKind*>& kinds) {
  std::vector<Tool> tools;
  for (const ToolKind* kind : kinds) tools.push_back(tool_of(*kind));
  if (!tools.empty() && context.draw.chance(5)) {  // declared on the way
    Message message;
    message.role = Role::kSystem;
    message.tools = std::move(tools);
    example.request.messages.push_back(std::move(message));
    return;
  }
  example.request.tools = std::move(tools);
}

struct DrawnCall {
  const ToolKind* kind;
  ToolCase use;
};

DrawnCall draw_call(ChatDraw& draw) {
  const ToolKind& kind = chat_tools()[draw.below(chat_tools().size())];
  return {&kind, draw.item([&] { return kind.draw(draw); })};
}

Message call_message(const ChatContext& context, const DrawnCall& call) {
  const std::string arguments = format_json_spaced(call.use.arguments);
  const std::string high =
      cat("The user wants something that ", call.kind->name, " can do. The arguments are ", arguments, ".");
  Message message = assistant_message(
      context.think(cat("I call ", call.kind->name, "."), high, cat(high, " I call it and wait for the result.")), "");
  message.tool_calls.push_back({"call_1", std::string(call.kind->name), call.use.arguments});
  return message;
}

}  // namespace

void make_tool_call(ChatContext& context, ChatExample& example) {
  ChatDraw& draw = context.draw;
  const DrawnCall call = draw_call(draw);
  declare(context, example, draw_tools(draw, draw.below(4), call.kind, nullptr));
  example.request.messages.push_back(user_message(call.use.question));
  const uint64_t choice = draw.below(20);
  if (choice < 2) example.request.tool_choice.kind = ToolChoice::Kind::kRequired;
  if (choice == 2) example.request.tool_choice = {ToolChoice::Kind::kNamed, std::string(call.kind->name)};
  example.reply = call_message(context, call);
}

void make_tool_answer(ChatContext& context, ChatExample& example) {
  ChatDraw& draw = context.draw;
  const DrawnCall call = draw_call(draw);
  declare(context, example, draw_tools(draw, draw.below(4), call.kind, nullptr));
  std::vector<Message>& messages = example.request.messages;
  messages.push_back(user_message(call.use.question));
  messages.push_back(call_message(context, call));
  Message result = text_message(Role::kTool, call.use.result);
  result.tool_call_id = "call_1";
  messages.push_back(std::move(result));
  const std::string high = cat("The tool returned ", call.use.result, ". I answer with that.");
  example.reply = assistant_message(context.think("I have the result.", high, cat(high, " Nothing else is needed.")),
                                    call.use.sentence);
  example.answer = call.use.answer;
}

void make_unknown_tool(ChatContext& context, ChatExample& example) {
  ChatDraw& draw = context.draw;
  const DrawnCall wanted = draw_call(draw);
  const std::vector<const ToolKind*> kinds = draw_tools(draw, 1 + draw.below(4), nullptr, wanted.kind);
  declare(context, example, kinds);
  constexpr std::string_view kNamedForms[] = {"Use the tool {0}. {1}", "{1} Use {0} for it.", "Call {0}. {1}",
                                              "Please run {0}: {1}", "With {0}: {1}"};
  const bool names_it = draw.chance(40);
  example.request.messages.push_back(user_message(
      names_it ? fill(draw.pick(kNamedForms), {wanted.kind->name, wanted.use.question}) : wanted.use.question));
  std::string list;
  for (const ToolKind* kind : kinds) list += cat(list.empty() ? "" : ", ", kind->name);
  const std::string missing = names_it ? cat("There is no tool called ", wanted.kind->name, ".")
                                       : cat("I have no tool to ", wanted.kind->purpose, ".");
  const std::string high = cat("The declared tools are ", list, ". None of them can ", wanted.kind->purpose, ".");
  example.reply = assistant_message(context.think("No declared tool fits.", high, cat(high, " I must not invent one.")),
                                    cat(missing, " I can use: ", list, "."));
  example.answer = missing;
}

}  // namespace tandem
