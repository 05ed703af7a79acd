#include "evaluate/chat_cases.h"

#include <charconv>

#include "evaluate/judge.h"
#include "text/chat_format.h"
#include "text/segment.h"

namespace tandem {
namespace {

constexpr int64_t kDrawsPerCase = 200;  // two-digit sums are about a third of all

// The operation of "add:17:25" when both numbers have two digits.
std::optional<std::string> two_digit_operation(const ChatExample& example) {
  if (example.keys.size() != 1) return std::nullopt;
  const std::string& key = example.keys[0];
  const size_t first = key.find(':');
  const size_t second = key.find(':', first + 1);
  if (first == std::string::npos || second == std::string::npos) return std::nullopt;
  const auto is_two_digits = [&](size_t begin, size_t end) {
    int value = 0;
    const auto [stop, error] = std::from_chars(key.data() + begin, key.data() + end, value);
    return error == std::errc() && stop == key.data() + end && value >= 10 && value <= 99;
  };
  if (!is_two_digits(first + 1, second) || !is_two_digits(second + 1, key.size())) return std::nullopt;
  return key.substr(0, first);
}

Result<ChatCase> make_case(const Tokenizer& tokenizer, ChatExample example) {
  ChatCase made;
  const auto expected = encode_example(tokenizer, example);
  if (!expected.is_ok()) return expected.status();
  const auto prompt = render_chat(tokenizer, example.request);
  if (!prompt.is_ok()) return prompt.status();
  made.task.prompt = encode_segments(tokenizer, prompt.value());
  made.task.max_tokens = 2 * static_cast<int64_t>(expected.value().ids.size() - expected.value().num_prompt) + 32;
  made.example = std::move(example);
  return made;
}

}  // namespace

Result<std::vector<ChatCase>> make_chat_cases(const ChatGenerator& generator, const Tokenizer& tokenizer,
                                              const FamilyCases& cases) {
  std::vector<ChatCase> made;
  const bool is_arithmetic = cases.family == ChatFamily::kArithmetic;
  const int64_t max_draws = is_arithmetic ? cases.cases * kDrawsPerCase : cases.cases;
  for (int64_t i = 0; i < max_draws && static_cast<int64_t>(made.size()) < cases.cases; ++i) {
    ChatExample example =
        generator.example(cases.family, ChatSplit::kTest, static_cast<uint64_t>(i), cases.distance_tokens);
    std::optional<std::string> operation;
    if (is_arithmetic) {
      operation = two_digit_operation(example);
      if (!operation) continue;
    }
    auto one = make_case(tokenizer, std::move(example));
    if (!one.is_ok()) return one.status();
    one.value().operation = operation.value_or("");
    made.push_back(std::move(one).value());
  }
  return made;
}

Result<ParsedReply> read_reply(const Tokenizer& tokenizer, const ChatRequest& request, const GreedyReply& reply) {
  const auto format = detect_chat_format(tokenizer);
  if (!format.is_ok()) return format.status();
  ReplyOptions options;
  const bool thinks = request.thinking.enabled && format.value() == ChatFormat::kXtml;
  options.start = thinks ? ReplyRegion::kThink : ReplyRegion::kResponse;
  options.report_tool_calls = request.has_tools() && request.tool_choice.kind != ToolChoice::Kind::kNone;
  for (const Tool& tool : declared_tools(request)) options.tool_names.push_back(tool.name);
  auto parser = ReplyParser::create(tokenizer, format.value(), options);
  if (!parser.is_ok()) return parser.status();
  std::vector<ReplyEvent> events;
  for (const TokenId id : reply.tokens) parser.value().append(id, events);
  const bool stopped = reply.finish_reason == FinishReason::kStop;
  return parser.value().finish(stopped ? ReplyStop::kStopToken : ReplyStop::kTokenLimit, events);
}

}  // namespace tandem
