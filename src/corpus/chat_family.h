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
  int64_t num_questions = 1;  // of kRecall
  std::span<const std::string> prose;
  std::span<const int64_t> prose_tokens;  // of each paragraph
  const Tokenizer* tokenizer = nullptr;

  // The reasoning of an assistant turn for the effort: none when thinking is off.
  std::string think(std::string_view low, std::string_view high, std::string_view max) const {
    if (!effort) return "";
    return std::string(*effort == ThinkingEffort::kLow ? low : *effort == ThinkingEffort::kHigh ? high : max);
  }
};

// Without a tokenizer four bytes are one token.
int64_t text_tokens(const Tokenizer* tokenizer, std::string_view text);

Message user_message(std::string text);
Message assistant_message(std::string reasoning, std::string text);

// Words of the generator's world (chat_words.cpp).
extern const std::span<const std::string_view> kNames, kTowns, kObjects, kColours, kAnimals, kFoods, kJobs, kDays,
    kMonths, kInstruments, kPlainWords, kRooms;

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
  std::string steps_aloud;  // in front of the statement when there is no think channel; empty for a digit and a digit
};
Sum draw_sum(ChatDraw& draw);
Message sum_reply(const ChatContext& context, const Sum& sum);

// Something true about someone or something, stated and asked for.
struct Fact {
  std::string key;
  std::string subject;  // what it is about: of two facts of one conversation it differs
  std::string value;
  std::string statement;
  std::string question;
  std::string answer;  // the sentence, to the user
  std::string found;   // the sentence, in the think channel
  bool is_mine = false;
};
Fact draw_fact(ChatDraw& draw);
std::string fact_reasoning(const ChatContext& context, const Fact& fact);

// Tools that the conversation has no use for.
void declare_idle_tools(ChatContext& context, ChatExample& example);

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
void make_everyday(ChatContext& context, ChatExample& example);

}  // namespace tandem
