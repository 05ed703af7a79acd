// corpus/chat_recall.cpp: facts asked for at a distance, in one message or over many turns.
#include <algorithm>

#include "base/cat.h"
#include "corpus/chat_family.h"

namespace tandem {
namespace {

constexpr std::string_view kStatementForms[] = {"{0} {1} is {2}.",
                                                "Remember this: {0} {1} is {2}.",
                                                "Please note that {0} {1} is {2}.",
                                                "By the way, {0} {1} is {2}.",
                                                "Keep in mind that {0} {1} is {2}.",
                                                "Here is something important: {0} {1} is {2}."};
constexpr std::string_view kQuestionForms[] = {"What is {0} {1}?",           "Can you tell me {0} {1}?",
                                               "Do you remember {0} {1}?",   "Please tell me {0} {1}.",
                                               "What did I say {0} {1} is?", "I forgot {0} {1}. What is it?"};
constexpr std::string_view kNotedForms[] = {"Noted: {0} {1} is {2}.", "I will remember that {0} {1} is {2}."};
constexpr std::string_view kReadForms[] = {"Here is a text:\n\n{0}", "Please read this:\n\n{0}", "{0}",
                                           "Let me tell you something else. {0}", "Some notes of mine:\n{0}"};
constexpr std::string_view kReadReplies[] = {"Thank you, I have read it.", "I have read the text.",
                                             "All right, I have read that."};

struct Attribute {
  std::string_view name;
  std::string (*value)(ChatDraw&);
};

std::string word_of(ChatDraw& draw, std::span<const std::string_view> words) { return std::string(draw.pick(words)); }

std::string draw_password(ChatDraw& draw) {
  const std::string_view first = draw.pick(kPlainWords);
  const std::string_view second = draw.pick(kPlainWords);
  return cat(first, "-", second, "-", draw.between(10, 99));
}

constexpr Attribute kAttributes[] = {
    {"locker code", [](ChatDraw& d) { return cat(d.between(1000, 9999)); }},
    {"lucky number", [](ChatDraw& d) { return cat(d.between(11, 999)); }},
    {"bus line", [](ChatDraw& d) { return cat(d.between(1, 99)); }},
    {"house number", [](ChatDraw& d) { return cat(d.between(1, 499)); }},
    {"favourite colour", [](ChatDraw& d) { return word_of(d, kColours); }},
    {"favourite animal", [](ChatDraw& d) { return cat("the ", d.pick(kAnimals)); }},
    {"favourite food", [](ChatDraw& d) { return word_of(d, kFoods); }},
    {"home town", [](ChatDraw& d) { return word_of(d, kTowns); }},
    {"instrument", [](ChatDraw& d) { return cat("the ", d.pick(kInstruments)); }},
    {"birthday", draw_date},
    {"password", draw_password},
    {"best friend", [](ChatDraw& d) { return word_of(d, kNames); }},
    {"dog's name", [](ChatDraw& d) { return capitalized(word_of(d, kPlainWords)); }},
};

// Facts of which no two are about the same thing of the same person.
std::vector<Fact> draw_facts(ChatDraw& draw, size_t count) {
  std::vector<Fact> facts;
  while (facts.size() < count) {
    Fact fact = draw_fact(draw);
    bool is_new = true;
    for (const Fact& other : facts) is_new &= other.owner != fact.owner || other.attribute != fact.attribute;
    if (is_new) facts.push_back(std::move(fact));
  }
  return facts;
}

void add_read_turn(ChatContext& context, ChatExample& example, int64_t tokens) {
  ChatDraw& draw = context.draw;
  const std::string_view form = draw.pick(kReadForms);
  example.request.messages.push_back(user_message(fill(form, {filler_text(context, tokens)})));
  example.request.messages.push_back(
      assistant_message(context.think("I have read it.", "There is no question here. I confirm that I have read it.",
                                      "There is no question here, only a text. I confirm that I have read it."),
                        std::string(draw.pick(kReadReplies))));
}

void add_fact_turn(ChatContext& context, ChatExample& example, const Fact& fact) {
  const std::string_view owner = fact.owner == "my" ? std::string_view("your") : fact.owner;
  example.request.messages.push_back(user_message(fact.statement));
  example.request.messages.push_back(
      assistant_message(context.think("I note this.", "The user tells me something to remember. I confirm it.",
                                      "The user tells me something to remember and asks nothing. I confirm it."),
                        fill(context.draw.pick(kNotedForms), {owner, fact.attribute, fact.value})));
}

void add_sum_turn(ChatContext& context, ChatExample& example, const Sum& sum) {
  example.request.messages.push_back(user_message(sum.question));
  example.request.messages.push_back(
      assistant_message(context.think(sum.steps_low, sum.steps_high, sum.steps_max), sum.statement));
}

}  // namespace

Fact draw_fact(ChatDraw& draw) {
  Fact fact = draw.item([&] {
    Fact drawn;
    drawn.owner = draw.chance(25) ? "my" : cat(draw.pick(kNames), "'s");
    const Attribute& attribute = kAttributes[draw.below(std::size(kAttributes))];
    drawn.attribute = attribute.name;
    drawn.value = attribute.value(draw);
    drawn.key = cat("fact:", drawn.owner, ":", drawn.attribute, ":", drawn.value);
    return drawn;
  });
  const std::string_view answer_owner = fact.owner == "my" ? std::string_view("your") : fact.owner;
  fact.statement = capitalized(fill(draw.pick(kStatementForms), {fact.owner, fact.attribute, fact.value}));
  fact.question = capitalized(fill(draw.pick(kQuestionForms), {fact.owner, fact.attribute}));
  fact.answer = capitalized(cat(answer_owner, " ", fact.attribute, " is ", fact.value, "."));
  return fact;
}

std::string fact_reasoning(const ChatContext& context, const Fact& fact) {
  const std::string_view owner = fact.owner == "my" ? std::string_view("the user's") : fact.owner;
  const std::string found = cat(owner, " ", fact.attribute, " is ", fact.value, ".");
  const std::string asked = cat("The question is about ", owner, " ", fact.attribute, ". The user said that ", found);
  return context.think(capitalized(found), asked, cat(asked, " Nothing later changes that."));
}

void make_recall(ChatContext& context, ChatExample& example) {
  ChatDraw& draw = context.draw;
  const std::vector<Fact> facts = draw_facts(draw, 1 + draw.below(5));
  const Fact& asked = facts[draw.below(facts.size())];
  std::vector<Message>& messages = example.request.messages;
  std::string statements;
  for (const Fact& fact : facts) statements += cat(statements.empty() ? "" : " ", fact.statement);
  const bool names_only = std::ranges::none_of(facts, [](const Fact& fact) { return fact.owner == "my"; });
  // The system message has nothing that is "mine" to the user.
  switch (draw.below(names_only ? 4 : 3)) {
    case 0:  // all in one message
      messages.push_back(
          user_message(cat(statements, "\n\n", filler_text(context, context.gap_tokens), "\n\n", asked.question)));
      break;
    case 3:  // stated by the system message
      messages.insert(messages.begin(), text_message(Role::kSystem, statements));
      if (messages.size() > 1) messages.erase(messages.begin() + 1);
      messages.push_back(user_message(cat(filler_text(context, context.gap_tokens), "\n\n", asked.question)));
      break;
    case 1:  // stated in a first turn, with the gap in the second
      for (const Fact& fact : facts) add_fact_turn(context, example, fact);
      add_read_turn(context, example, context.gap_tokens);
      messages.push_back(user_message(asked.question));
      break;
    default:  // the gap in several turns
      messages.push_back(user_message(statements));
      messages.push_back(assistant_message(context.think("I note this.", "The user tells me things to remember.",
                                                         "The user tells me things to remember and asks nothing."),
                                           "Thank you, I will remember that."));
      const int64_t num_turns = 1 + static_cast<int64_t>(draw.below(4));
      for (int64_t i = 0; i < num_turns; ++i) {
        add_read_turn(context, example, (context.gap_tokens + num_turns - 1) / num_turns);
      }
      messages.push_back(user_message(asked.question));
  }
  example.gap_tokens = context.gap_tokens;
  example.reply = assistant_message(fact_reasoning(context, asked), asked.answer);
  example.answer = asked.value;
}

void make_multi_turn(ChatContext& context, ChatExample& example) {
  ChatDraw& draw = context.draw;
  const std::vector<Fact> facts = draw_facts(draw, 2 + draw.below(2));
  const Sum first_sum = draw_sum(draw);
  std::vector<Message>& messages = example.request.messages;
  const bool asks_fact = draw.chance(60);
  add_fact_turn(context, example, facts[0]);
  add_sum_turn(context, example, first_sum);
  if (context.gap_tokens > 16) add_read_turn(context, example, context.gap_tokens);
  for (size_t i = 1; i < facts.size(); ++i) add_fact_turn(context, example, facts[i]);
  const size_t last = draw.below(facts.size());
  if (draw.chance(50)) {  // about another fact than the last question
    const Fact& early = facts[(last + 1) % facts.size()];
    messages.push_back(user_message(early.question));
    messages.push_back(assistant_message(fact_reasoning(context, early), early.answer));
  }
  example.gap_tokens = context.gap_tokens;
  if (asks_fact) {
    const Fact& asked = facts[last];
    messages.push_back(user_message(asked.question));
    example.reply = assistant_message(fact_reasoning(context, asked), asked.answer);
    example.answer = asked.value;
    return;
  }
  constexpr std::string_view kForms[] = {
      "What was the result of the calculation?", "What number did you get for the calculation I asked about?",
      "Can you repeat the result of the sum?", "Which result did you calculate before?",
      "What was your answer to my calculation?"};
  messages.push_back(user_message(std::string(draw.pick(kForms))));
  const std::string found = cat("I calculated that ", first_sum.statement);
  example.reply = assistant_message(
      context.think(found, cat("The user asks for the earlier result. ", found),
                    cat("The user asks for the earlier result. ", found, " I do not need to calculate it again.")),
      cat("The result was ", first_sum.result, "."));
  example.answer = cat(" ", first_sum.result, ".");
}

}  // namespace tandem
