// corpus/chat_recall.cpp: facts asked for at a distance, in one message or over many turns.
#include <algorithm>

#include "base/cat.h"
#include "corpus/chat_family.h"

namespace tandem {
namespace {

constexpr std::string_view kNotedForms[] = {"Noted: {0}", "I will remember that. {0}", "All right. {0}", "Okay. {0}"};
constexpr std::string_view kReadForms[] = {"Here is a text:\n\n{0}",
                                           "Please read this:\n\n{0}",
                                           "{0}",
                                           "Let me tell you something else. {0}",
                                           "Some notes of mine:\n{0}",
                                           "This is from a book.\n\n{0}",
                                           "Read this too.\n{0}"};
constexpr std::string_view kReadReplies[] = {"Thank you, I have read it.", "I have read the text.",
                                             "All right, I have read that."};

// Facts of which no two are about the same thing.
std::vector<Fact> draw_facts(ChatDraw& draw, size_t count) {
  std::vector<Fact> facts;
  while (facts.size() < count) {
    Fact fact = draw_fact(draw);
    const auto is_same = [&](const Fact& other) { return other.subject == fact.subject; };
    if (std::ranges::none_of(facts, is_same)) facts.push_back(std::move(fact));
  }
  return facts;
}

void add_turn(ChatExample& example, std::string question, Message reply) {
  example.request.messages.push_back(user_message(std::move(question)));
  example.request.messages.push_back(std::move(reply));
}

void add_read_turn(ChatContext& context, ChatExample& example, const std::string& text) {
  const std::string_view form = context.draw.pick(kReadForms);
  add_turn(
      example, fill(form, {text}),
      assistant_message(context.think("I have read it.", "There is no question here. I confirm that I have read it.",
                                      "There is no question here, only a text. I confirm that I have read it."),
                        std::string(context.draw.pick(kReadReplies))));
}

void add_fact_turn(ChatContext& context, ChatExample& example, const Fact& fact) {
  add_turn(example, fact.statement,
           assistant_message(context.think("I note this.", "The user tells me something to remember. I confirm it.",
                                           "The user tells me something to remember and asks nothing. I confirm it."),
                             fill(context.draw.pick(kNotedForms), {fact.answer})));
}

Message fact_reply(const ChatContext& context, const Fact& fact) {
  return assistant_message(fact_reasoning(context, fact), fact.answer);
}

// The facts one behind the other, perhaps with other sentences between them.
std::string statements_of(ChatContext& context, std::span<const Fact> facts) {
  const bool is_mixed = context.draw.chance(35);
  std::string out;
  for (const Fact& fact : facts) {
    if (!out.empty()) out += ' ';
    if (is_mixed && context.draw.chance(60)) out += cat(filler_sentence(context.draw), " ");
    out += fact.statement;
  }
  return out;
}

// Filler of `tokens` with the other facts somewhere in it.
std::string gap_text(ChatContext& context, int64_t tokens, std::span<const Fact> others) {
  std::string out;
  const auto parts = static_cast<int64_t>(others.size()) + 1;
  for (int64_t i = 0; i < parts; ++i) {
    const std::string text = filler_text(context, (tokens + parts - 1) / parts);
    out += cat(out.empty() || text.empty() ? "" : " ", text);
    if (i + 1 < parts) out += cat(out.empty() ? "" : " ", others[static_cast<size_t>(i)].statement);
  }
  return out;
}

}  // namespace

void make_recall(ChatContext& context, ChatExample& example) {
  ChatDraw& draw = context.draw;
  const auto num_questions = static_cast<size_t>(context.num_questions);
  const size_t num_early = num_questions + draw.below(num_questions == 1 ? 5 : 3);
  const size_t num_others = draw.chance(40) && context.gap_tokens > 24 ? 1 + draw.below(2) : 0;
  std::vector<Fact> facts = draw_facts(draw, num_early + num_others);
  const auto early = std::span(facts).first(num_early);
  const auto others = std::span<const Fact>(facts).subspan(num_early);
  std::vector<size_t> order(num_early);  // the first num_questions are asked for
  for (size_t i = 0; i < num_early; ++i) order[i] = i;
  for (size_t i = num_early; i > 1; --i) std::swap(order[i - 1], order[draw.below(i)]);

  std::vector<Message>& messages = example.request.messages;
  // The system message has nothing that is "mine" to the user.
  const bool may_be_system = std::ranges::none_of(early, [](const Fact& fact) { return fact.is_mine; });
  // Sometimes the facts are not the first that is said.
  if (draw.chance(25))
    add_read_turn(context, example, filler_text(context, std::min<int64_t>(context.gap_tokens / 4, 500)));
  std::string before;  // of the first question, in its message
  switch (draw.below(may_be_system ? 4 : 3)) {
    case 0:  // all in one message
      before = cat(statements_of(context, early), "\n\n", gap_text(context, context.gap_tokens, others), "\n\n");
      break;
    case 3:  // stated by the system message
      if (!messages.empty() && messages[0].role == Role::kSystem && messages[0].tools.empty())
        messages.erase(messages.begin());
      messages.insert(messages.begin(), text_message(Role::kSystem, statements_of(context, early)));
      before = cat(gap_text(context, context.gap_tokens, others), "\n\n");
      break;
    case 1:  // stated in turns of their own, with the gap in the next
      for (const Fact& fact : early) add_fact_turn(context, example, fact);
      add_read_turn(context, example, gap_text(context, context.gap_tokens, others));
      break;
    default: {  // the gap in several turns
      add_turn(example, statements_of(context, early),
               assistant_message(context.think("I note this.", "The user tells me things to remember.",
                                               "The user tells me things to remember and asks nothing."),
                                 "Thank you, I will remember that."));
      const int64_t num_turns = 1 + static_cast<int64_t>(draw.below(4));
      const auto told = static_cast<int64_t>(draw.below(static_cast<uint64_t>(num_turns)));
      for (int64_t i = 0; i < num_turns; ++i) {
        const int64_t tokens = (context.gap_tokens + num_turns - 1) / num_turns;
        add_read_turn(context, example, gap_text(context, tokens, i == told ? others : std::span<const Fact>()));
      }
    }
  }
  for (size_t i = 0; i + 1 < num_questions; ++i) {
    const Fact& fact = early[order[i]];
    add_turn(example, before + fact.question, fact_reply(context, fact));
    before.clear();
  }
  const Fact& asked = early[order[num_questions - 1]];
  messages.push_back(user_message(before + asked.question));
  example.gap_tokens = context.gap_tokens;
  example.reply = fact_reply(context, asked);
  example.answer = asked.value;
}

void make_multi_turn(ChatContext& context, ChatExample& example) {
  ChatDraw& draw = context.draw;
  const std::vector<Fact> facts = draw_facts(draw, 3 + draw.below(2));
  const std::span<const Fact> told = std::span(facts).first(facts.size() - 1);  // the last one never is
  const Sum first_sum = draw_sum(draw);
  std::vector<Message>& messages = example.request.messages;
  add_fact_turn(context, example, told[0]);
  add_turn(example, first_sum.question, sum_reply(context, first_sum));
  if (context.gap_tokens > 16) add_read_turn(context, example, filler_text(context, context.gap_tokens));
  for (size_t i = 1; i < told.size(); ++i) add_fact_turn(context, example, told[i]);
  const size_t last = draw.below(told.size());
  if (draw.chance(50)) {  // about another fact than the last question
    const Fact& fact = told[(last + 1) % told.size()];
    add_turn(example, fact.question, fact_reply(context, fact));
  }
  example.gap_tokens = context.gap_tokens;
  const uint64_t kind = draw.below(20);
  if (kind < 11) {
    const Fact& asked = told[last];
    messages.push_back(user_message(asked.question));
    example.reply = fact_reply(context, asked);
    example.answer = asked.value;
    return;
  }
  if (kind < 14) {
    messages.push_back(user_message(facts.back().question));
    example.answer = "You have not told me that.";
    example.reply = assistant_message(
        context.think("That was not said.", "The user asks for something that was not said before. I must not guess.",
                      "The user asks for something that was not said before. I looked for it in every turn. I must not "
                      "guess."),
        example.answer);
    return;
  }
  constexpr std::string_view kForms[] = {
      "What was the result of the calculation?", "What number did you get for the calculation I asked about?",
      "Can you repeat the result of the calculation?", "Which result did you calculate before?",
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
