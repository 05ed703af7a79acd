#include "corpus/chat_generator.h"

#include <array>
#include <bit>

#include "corpus/chat_family.h"

namespace tandem {
namespace {

using Maker = void (*)(ChatContext&, ChatExample&);
constexpr std::array<Maker, kNumChatFamilies> kMakers = {
    make_greeting, make_arithmetic, make_copy,        make_recall,       make_multi_turn,
    make_reading,  make_tool_call,  make_tool_answer, make_unknown_tool, make_json};

// Of 100 places of a mixture, by family.
constexpr std::array<int, kNumChatFamilies> kShares = {4, 20, 8, 20, 10, 8, 12, 8, 4, 6};

constexpr std::string_view kSystemPrompts[] = {"You are a helpful assistant.",
                                               "You are a friendly assistant.",
                                               "Answer briefly.",
                                               "Be precise.",
                                               "You answer in plain, short English.",
                                               "You are a careful assistant who never guesses."};

std::optional<ThinkingEffort> draw_effort(ChatDraw& draw) {
  const uint64_t place = draw.below(100);
  if (place < 15) return std::nullopt;
  if (place < 45) return ThinkingEffort::kLow;
  return place < 70 ? ThinkingEffort::kHigh : ThinkingEffort::kMax;
}

// Every octave from 8 on is equally likely.
int64_t draw_gap(ChatDraw& draw, int64_t max_tokens) {
  if (max_tokens <= 8) return max_tokens;
  const int octaves = static_cast<int>(std::bit_width(static_cast<uint64_t>((max_tokens - 1) / 8)));
  const int64_t low = int64_t{8} << draw.below(static_cast<uint64_t>(octaves));
  return draw.between(low, std::min(2 * low, max_tokens));
}

}  // namespace

ChatExample ChatGenerator::example(ChatFamily family, ChatSplit split, uint64_t index,
                                   std::optional<int64_t> gap_tokens) const {
  const auto number = static_cast<uint64_t>(family);
  const uint64_t start =
      combine_bits(combine_bits(options_.seed, number * 2 + (split == ChatSplit::kTest ? 1 : 0)), index);
  ChatDraw draw(start, split);
  ChatExample example;
  example.family = family;
  ChatContext context{draw, draw_effort(draw), 0, options_.prose, options_.tokenizer};
  context.gap_tokens = gap_tokens ? *gap_tokens : draw_gap(draw, options_.max_gap_tokens);
  if (draw.chance(30))
    example.request.messages.push_back(text_message(Role::kSystem, std::string(draw.pick(kSystemPrompts))));
  kMakers[number](context, example);
  // The API renders the effort whenever thinking is on, and a named tool choice switches thinking off.
  if (example.request.tool_choice.kind == ToolChoice::Kind::kNamed) context.effort.reset();
  example.request.thinking = {context.effort.has_value(), context.effort};
  if (!context.effort) {
    example.reply.reasoning.clear();
    for (Message& message : example.request.messages) message.reasoning.clear();
  }
  example.keys = draw.keys();
  return example;
}

ChatFamily ChatGenerator::family_of(uint64_t index) const {
  StableRandom random(combine_bits(options_.seed ^ 0x66616D696C79, index));
  auto place = static_cast<int>(random.below(100));
  int family = 0;
  while (place >= kShares[static_cast<size_t>(family)]) place -= kShares[static_cast<size_t>(family++)];
  return static_cast<ChatFamily>(family);
}

}  // namespace tandem
