// corpus/chat_family.h: the makers of the families of chat_generator.h and what they share. Not for others.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "corpus/chat_draw.h"
#include "corpus/chat_example.h"
#include "text/chat_message.h"
#include "text/tokenizer.h"

namespace tandem {

struct ChatContext {
  ChatDraw& draw;
  std::optional<ThinkingEffort> effort;  // nothing: thinking is off
  int64_t gap_tokens = 0;
  std::span<const std::string> prose;
  const Tokenizer* tokenizer = nullptr;

  // The reasoning of an assistant turn for the effort: none when thinking is off.
  std::string think(std::string_view low, std::string_view high, std::string_view max) const {
    if (!effort) return "";
    return std::string(*effort == ThinkingEffort::kLow ? low : *effort == ThinkingEffort::kHigh ? high : max);
  }
  int64_t token_length(std::string_view text) const;
};

Message user_message(std::string text);
Message assistant_message(std::string reasoning, std::string text);

// Words of the generator's world (chat_words.cpp).
extern const std::span<const std::string_view> kNames, kTowns, kObjects, kColours, kAnimals, kFoods, kJobs, kDays,
    kMonths, kInstruments, kPlainWords;

// Sentences about people and things that no fact is about, `tokens` long or a sentence more.
std::string filler_text(ChatContext& context, int64_t tokens);
std::string filler_sentence(ChatDraw& draw);
std::string draw_date(ChatDraw& draw);  // "12 May"

// Two numbers and an operation, in words and worked out.
struct Sum {
  std::string key;
  std::string question;
  std::string result;
  std::string statement;  // "17 plus 25 is 42."
  std::string steps_low, steps_high, steps_max;
};
Sum draw_sum(ChatDraw& draw);

// Something true about someone, stated and asked for.
struct Fact {
  std::string key;
  std::string owner;      // "Mira's" or "my"
  std::string attribute;  // "locker code"
  std::string value;
  std::string statement;
  std::string question;
  std::string answer;  // the sentence
};
Fact draw_fact(ChatDraw& draw);
std::string fact_reasoning(const ChatContext& context, const Fact& fact);

void make_greeting(ChatContext& context, ChatExample& example);
void make_arithmetic(ChatContext& context, ChatExample& example);
void make_copy(ChatContext& context, ChatExample& example);
void make_recall(ChatContext& context, ChatExample& example);
void make_multi_turn(ChatContext& context, ChatExample& example);
void make_reading(ChatContext& context, ChatExample& example);
void make_tool_call(ChatContext& context, ChatExample& example);
void make_tool_answer(ChatContext& context, ChatExample& example);
void make_unknown_tool(ChatContext& context, ChatExample& example);
void make_json(ChatContext& context, ChatExample& example);

}  // namespace tandem
