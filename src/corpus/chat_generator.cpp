#include "corpus/chat_generator.h"

#include <array>
#include <bit>

#include "corpus/chat_family.h"

namespace tandem {
namespace {

using Maker = void (*)(ChatContext&, ChatExample&);
constexpr std::array<Maker, kNumChatFamilies> kMakers = {
    make_greeting,  make_arithmetic,  make_copy,         make_recall, make_multi_turn, make_reading,
    make_tool_call, make_tool_answer, make_unknown_tool, make_json,   make_everyday};

// Families that any conversation may be about, tools declared or not.
constexpr bool may_declare_idle_tools(ChatFamily family) {
  return family == ChatFamily::kGreeting || family == ChatFamily::kArithmetic || family == ChatFamily::kCopy ||
         family == ChatFamily::kRecall || family == ChatFamily::kEveryday;
}

constexpr std::string_view kSystemPrompts[] = {"You are a helpful assistant.",
                                               "You are a friendly assistant.",
                                               "Answer briefly.",
                                               "Be precise.",
                                               "You answer in plain, short English.",
                                               "You are nano.",
                                               "You are nano, a small and friendly model.",
                                               "Help the user.",
                                               "You are a helpful assistant. Keep your answers short.",
                                               "Be polite and brief.",
                                               "Think before you answer.",
                                               "Answer the user's questions.",
                                               "You are an assistant in a chat program.",
                                               "You are a careful assistant who never guesses."};

std::optional<ThinkingEffort> draw_effort(ChatDraw& draw) {
  const uint64_t place = draw.below(100);
  if (place < 25) return std::nullopt;
  if (place < 50) return ThinkingEffort::kLow;
  return place < 75 ? ThinkingEffort::kHigh : ThinkingEffort::kMax;
}

// Every octave between the two is equally likely; a range of less than two octaves is even.
int64_t draw_gap(ChatDraw& draw, int64_t min_tokens, int64_t max_tokens) {
  if (max_tokens < 4 * std::max<int64_t>(min_tokens, 1))
    return draw.between(std::min(min_tokens, max_tokens), max_tokens);
  const int64_t first = std::max<int64_t>(min_tokens, 8);
  const int octaves = static_cast<int>(std::bit_width(static_cast<uint64_t>((max_tokens - 1) / first)));
  const int64_t low = first << draw.below(static_cast<uint64_t>(std::max(octaves, 1)));
  return draw.between(std::min(low, max_tokens), std::min(2 * low, max_tokens));
}

}  // namespace

ChatGenerator::ChatGenerator(ChatGeneratorOptions options) : options_(std::move(options)) {
  for (const std::string& paragraph : options_.prose) {
    prose_tokens_.push_back(text_tokens(options_.tokenizer, paragraph));
  }
  for (const int share : options_.shares) total_share_ += share;
}

ChatExample ChatGenerator::example(ChatFamily family, ChatSplit split, uint64_t index,
                                   std::optional<int64_t> gap_tokens) const {
  const auto number = static_cast<uint64_t>(family);
  const uint64_t start =
      combine_bits(combine_bits(options_.seed, number * 2 + (split == ChatSplit::kTest ? 1 : 0)), index);
  ChatDraw draw(start, split);
  ChatExample example;
  example.family = family;
  ChatContext context{draw, draw_effort(draw), 0, 1, options_.prose, prose_tokens_, options_.tokenizer};
  context.gap_tokens = gap_tokens ? *gap_tokens : draw_gap(draw, options_.min_gap_tokens, options_.max_gap_tokens);
  context.num_questions = draw.between(options_.min_questions, options_.max_questions);
  if (draw.chance(30)) {
    example.request.messages.push_back(text_message(Role::kSystem, std::string(draw.pick(kSystemPrompts))));
  }
  if (may_declare_idle_tools(family) && draw.chance(8)) declare_idle_tools(context, example);
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
  auto place = static_cast<int>(random.below(static_cast<uint64_t>(total_share_)));
  int family = 0;
  while (place >= options_.shares[static_cast<size_t>(family)]) place -= options_.shares[static_cast<size_t>(family++)];
  return static_cast<ChatFamily>(family);
}

}  // namespace tandem
