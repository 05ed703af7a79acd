// corpus/chat_tool_talk.cpp: conversations with declared tools: a call, an answer from a result, and a request that no
// tool can serve.
#include <algorithm>

#include "base/cat.h"
#include "corpus/chat_family.h"
#include "corpus/chat_tool_cases.h"
#include "text/json_format.h"

namespace tandem {
namespace {

// `with`, and `count` other tools, in a random order; no two have a name in common, none that of `without`.
std::vector<DrawnTool> draw_tools(ChatDraw& draw, size_t count, std::span<const DrawnTool> with,
                                  std::string_view without) {
  std::vector<DrawnTool> tools(with.begin(), with.end());
  for (size_t wanted = tools.size() + count; tools.size() < wanted;) {
    DrawnTool tool = draw_tool(draw);
    const auto is_same = [&](const DrawnTool& other) {
      return other.name == tool.name || other.purpose == tool.purpose;
    };
    if (tool.name != without && std::ranges::none_of(tools, is_same)) tools.push_back(std::move(tool));
  }
  for (size_t i = tools.size(); i > 1; --i) std::swap(tools[i - 1], tools[draw.below(i)]);
  return tools;
}

void declare(ChatContext& context, ChatExample& example, const std::vector<DrawnTool>& drawn) {
  std::vector<Tool> tools;
  for (const DrawnTool& tool : drawn) tools.push_back(tool.tool);
  if (!tools.empty() && context.draw.chance(5)) {  // declared on the way
    Message message;
    message.role = Role::kSystem;
    message.tools = std::move(tools);
    example.request.messages.push_back(std::move(message));
    return;
  }
  example.request.tools = std::move(tools);
}

// Whether two requests cannot stand in one conversation: they say the same, or name one made-up tool in two forms.
bool clashes(const ToolUse& a, const ToolUse& b) {
  return a.use.key == b.use.key || (a.tool.name == b.tool.name && a.use.key.starts_with("call:made:"));
}

// One request, or sometimes two in one message.
std::vector<ToolUse> draw_uses(ChatDraw& draw) {
  std::vector<ToolUse> uses = {draw_tool_use(draw)};
  if (!draw.chance(12)) return uses;
  for (int attempt = 0; attempt < 20 && uses.size() == 1; ++attempt) {
    ToolUse other = draw_tool_use(draw);
    if (!clashes(other, uses[0])) uses.push_back(std::move(other));
  }
  return uses;
}

std::vector<DrawnTool> tools_of(const std::vector<ToolUse>& uses) {
  std::vector<DrawnTool> tools;
  for (const ToolUse& use : uses) {
    const auto is_same = [&](const DrawnTool& tool) { return tool.name == use.tool.name; };
    if (std::ranges::none_of(tools, is_same)) tools.push_back(use.tool);
  }
  return tools;
}

std::string question_of(ChatDraw& draw, const std::vector<ToolUse>& uses) {
  if (uses.size() == 1) return uses[0].use.question;
  constexpr std::string_view kForms[] = {"{0} And: {1}", "{0} {1}", "Two things. {0} {1}", "{0}\n{1}", "{0} Also: {1}"};
  return fill(draw.pick(kForms), {uses[0].use.question, uses[1].use.question});
}

Message call_message(const ChatContext& context, const std::vector<ToolUse>& uses) {
  std::string names;
  std::string purposes;
  for (const ToolUse& use : uses) {
    names += cat(names.empty() ? "" : " and ", use.tool.name);
    purposes += cat(purposes.empty() ? "" : " and ", use.tool.purpose);
  }
  const std::string high = cat("The user wants me to ", purposes, ". I call ", names, ".");
  Message message = assistant_message(
      context.think(cat("I call ", names, "."), high, cat(high, " The arguments are in the request.")), "");
  for (size_t i = 0; i < uses.size(); ++i) {
    message.tool_calls.push_back({cat("call_", i + 1), uses[i].tool.name, uses[i].use.arguments});
  }
  return message;
}

void add_results(ChatExample& example, const std::vector<ToolUse>& uses) {
  for (size_t i = 0; i < uses.size(); ++i) {
    Message result = text_message(Role::kTool, uses[i].use.result);
    result.tool_call_id = cat("call_", i + 1);
    example.request.messages.push_back(std::move(result));
  }
}

Message answer_message(const ChatContext& context, const std::vector<ToolUse>& uses) {
  std::string sentences;
  for (const ToolUse& use : uses) sentences += cat(sentences.empty() ? "" : " ", use.use.sentence);
  const std::string high = "The tool has answered. I tell the user what it says.";
  return assistant_message(context.think("I have the result.", high, cat(high, " Nothing else is needed.")), sentences);
}

// A request, its calls, its results and the answer, as history.
void add_served_request(ChatContext& context, ChatExample& example, const std::vector<ToolUse>& uses) {
  std::vector<Message>& messages = example.request.messages;
  messages.push_back(user_message(question_of(context.draw, uses)));
  messages.push_back(call_message(context, uses));
  add_results(example, uses);
  messages.push_back(answer_message(context, uses));
}

}  // namespace

void declare_idle_tools(ChatContext& context, ChatExample& example) {
  declare(context, example, draw_tools(context.draw, 1 + context.draw.below(3), {}, ""));
}

void make_tool_call(ChatContext& context, ChatExample& example) {
  ChatDraw& draw = context.draw;
  const std::vector<ToolUse> uses = draw_uses(draw);
  std::vector<ToolUse> earlier;
  if (draw.chance(15)) {
    ToolUse use = draw_tool_use(draw);
    const auto is_apart = [&](const ToolUse& other) { return !clashes(use, other); };
    if (std::ranges::all_of(uses, is_apart)) earlier = {std::move(use)};
  }
  std::vector<ToolUse> all = earlier;
  all.insert(all.end(), uses.begin(), uses.end());
  declare(context, example, draw_tools(draw, draw.below(4), tools_of(all), ""));
  if (!earlier.empty()) add_served_request(context, example, earlier);
  example.request.messages.push_back(user_message(question_of(draw, uses)));
  const uint64_t choice = draw.below(20);
  if (choice < 2) example.request.tool_choice.kind = ToolChoice::Kind::kRequired;
  if (choice == 2 && uses.size() == 1) example.request.tool_choice = {ToolChoice::Kind::kNamed, uses[0].tool.name};
  example.reply = call_message(context, uses);
}

void make_tool_answer(ChatContext& context, ChatExample& example) {
  ChatDraw& draw = context.draw;
  const std::vector<ToolUse> uses = draw_uses(draw);
  declare(context, example, draw_tools(draw, draw.below(4), tools_of(uses), ""));
  example.request.messages.push_back(user_message(question_of(draw, uses)));
  example.request.messages.push_back(call_message(context, uses));
  add_results(example, uses);
  example.reply = answer_message(context, uses);
  example.answer = uses.back().use.answer;
}

void make_unknown_tool(ChatContext& context, ChatExample& example) {
  ChatDraw& draw = context.draw;
  const ToolUse wanted = draw_tool_use(draw);
  std::vector<DrawnTool> tools;
  const size_t count = draw.below(5);
  while (tools.size() < count) {  // none that could serve it
    DrawnTool tool = draw_tool(draw);
    const auto is_same = [&](const DrawnTool& other) { return other.name == tool.name; };
    if (tool.name == wanted.tool.name || tool.purpose == wanted.tool.purpose || std::ranges::any_of(tools, is_same))
      continue;
    tools.push_back(std::move(tool));
  }
  declare(context, example, tools);
  constexpr std::string_view kNamedForms[] = {"Use the tool {0}. {1}", "{1} Use {0} for it.", "Call {0}. {1}",
                                              "Please run {0}: {1}", "With {0}: {1}"};
  // A made-up request names its tool itself.
  const bool is_made = wanted.use.question.find(wanted.tool.name) != std::string::npos;
  const bool names_it = is_made || draw.chance(40);
  example.request.messages.push_back(
      user_message(names_it && !is_made ? fill(draw.pick(kNamedForms), {wanted.tool.name, wanted.use.question})
                                        : wanted.use.question));
  std::string list;
  for (const DrawnTool& tool : tools) list += cat(list.empty() ? "" : ", ", tool.name);
  const std::string missing = names_it ? cat("There is no tool called ", wanted.tool.name, ".")
                                       : cat("I have no tool to ", wanted.tool.purpose, ".");
  const std::string high = tools.empty() ? std::string("No tools are declared.")
                                         : cat("The declared tools are ", list, ". None of them fits.");
  example.reply = assistant_message(context.think("No declared tool fits.", high, cat(high, " I must not invent one.")),
                                    tools.empty() ? missing : cat(missing, " I can use: ", list, "."));
  example.answer = missing;
}

}  // namespace tandem
