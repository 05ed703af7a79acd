#include "text/tool_results.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/cat.h"

namespace tandem {
namespace {

std::optional<size_t> call_of(const Message& result, const std::vector<ToolCall>& calls) {
  if (!result.tool_call_id) return std::nullopt;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].id == result.tool_call_id) return i;
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    if (cat(calls[i].name, ":", i) == *result.tool_call_id) return i;
  }
  return std::nullopt;
}

void order_run(std::span<Message> run, const std::vector<ToolCall>& calls) {
  std::vector<std::pair<size_t, Message>> matched;
  for (const Message& result : run) {
    const auto call = call_of(result, calls);
    if (!call) return;
    matched.emplace_back(*call, result);
    matched.back().second.tool_name = calls[*call].name;
  }
  std::stable_sort(matched.begin(), matched.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < run.size(); ++i) run[i] = std::move(matched[i].second);
}

}  // namespace

std::vector<Message> order_tool_results(std::vector<Message> messages) {
  const std::vector<ToolCall> no_calls;
  const std::vector<ToolCall>* calls = &no_calls;
  for (size_t begin = 0; begin < messages.size();) {
    if (messages[begin].role == Role::kAssistant) calls = &messages[begin].tool_calls;
    size_t end = begin;
    while (end < messages.size() && messages[end].role == Role::kTool) ++end;
    if (end > begin) order_run(std::span(messages).subspan(begin, end - begin), *calls);
    begin = std::max(end, begin + 1);
  }
  return messages;
}

}  // namespace tandem
