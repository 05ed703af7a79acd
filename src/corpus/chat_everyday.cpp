// corpus/chat_everyday.cpp: small everyday skills, and questions that a small model cannot answer.
#include <algorithm>

#include "base/cat.h"
#include "corpus/chat_family.h"

namespace tandem {
namespace {

struct Task {
  std::string key;
  std::string question;
  std::string reasoning;
  std::string reply;
  std::string answer;
};

// The wording is part of the key where the meanings are so few that each must be learned.
Task draw_next(ChatDraw& draw) {
  constexpr std::string_view kAfterForms[] = {"Which {1} comes after {0}?", "What {1} comes after {0}?",
                                              "What is the {1} after {0}?", "which {1} follows {0}?",
                                              "Tell me the {1} after {0}.", "{0} is over. Which {1} is next?"};
  constexpr std::string_view kBeforeForms[] = {"Which {1} comes before {0}?", "What {1} comes before {0}?",
                                               "What is the {1} before {0}?", "which {1} is before {0}?",
                                               "Tell me the {1} before {0}.", "It is {0}. Which {1} was it before?"};
  const bool is_day = draw.chance(40);
  const bool is_after = draw.chance(60);
  const std::span<const std::string_view> list = is_day ? kDays : kMonths;
  const size_t at = draw.below(list.size());
  const size_t next = (at + (is_after ? 1 : list.size() - 1)) % list.size();
  const std::string_view form = is_after ? draw.pick(kAfterForms) : draw.pick(kBeforeForms);
  const std::string sentence = cat(list[next], " comes ", is_after ? "after " : "before ", list[at], ".");
  return {cat("next:", form, ":", list[at]), fill(form, {list[at], is_day ? "day" : "month"}),
          "I go through the calendar.", sentence, std::string(list[next])};
}

Task draw_count(ChatDraw& draw) {
  constexpr std::string_view kForms[] = {"Count from {0} to {1}.", "count from {0} to {1}",
                                         "Please count from {0} to {1}.", "Can you count from {0} to {1}?",
                                         "List the numbers from {0} to {1}."};
  int64_t from = draw.between(0, 90);
  int64_t to = from + draw.between(2, 9);
  if (draw.chance(30)) std::swap(from, to);
  std::string list;
  for (int64_t i = from;; i += from < to ? 1 : -1) {
    list += cat(list.empty() ? "" : ", ", i);
    if (i == to) break;
  }
  return {cat("count:", from, ":", to), fill(draw.pick(kForms), {cat(from), cat(to)}), "I count one by one.", list,
          list};
}

Task draw_compare(ChatDraw& draw) {
  constexpr std::string_view kLargerForms[] = {"Which is larger, {0} or {1}?", "Which number is larger: {0} or {1}?",
                                               "What is bigger, {0} or {1}?", "Which is greater, {0} or {1}?",
                                               "is {0} or {1} larger?"};
  constexpr std::string_view kSmallerForms[] = {"Which is smaller, {0} or {1}?", "Which number is smaller: {0} or {1}?",
                                                "What is less, {0} or {1}?", "is {0} or {1} smaller?"};
  const int64_t a = draw.between(1, 999);
  int64_t b = draw.chance(50) ? draw.between(1, 999) : std::max<int64_t>(1, a + draw.between(-20, 20));
  if (b == a) b = a + 1;
  const bool larger = draw.chance(60);
  const int64_t result = larger ? std::max(a, b) : std::min(a, b);
  const std::string_view word = larger ? "larger" : "smaller";
  return {cat("compare:", a, ":", b),
          fill(larger ? draw.pick(kLargerForms) : draw.pick(kSmallerForms), {cat(a), cat(b)}),
          cat(result, " is ", word, " than ", a + b - result, "."), cat(result, " is ", word, "."), cat(result)};
}

Task draw_spelling(ChatDraw& draw) {
  constexpr std::string_view kForms[] = {
      "How do you spell \"{0}\"?",      "Spell the word {0}.",          "Spell {0}.",
      "spell \"{0}\" letter by letter", "What are the letters of {0}?", "Can you spell {0}?"};
  const std::span<const std::string_view> lists[] = {kPlainWords, kObjects, kAnimals, kFoods, kColours};
  const std::string_view word = draw.pick(lists[draw.below(std::size(lists))]);
  const std::string_view form = draw.pick(kForms);
  std::string letters;
  for (const char c : word) letters += cat(letters.empty() ? "" : "-", c);
  return {cat("spell:", word, ":", form), fill(form, {word}), "I go letter by letter.", letters, letters};
}

Task draw_choice(ChatDraw& draw) {
  constexpr std::string_view kForms[] = {"Which of these is {1}: {0}?", "Which one is {1}: {0}?", "{0}. Which is {1}?",
                                         "Find {1} in this list: {0}."};
  struct Kind {
    std::string_view name;
    std::span<const std::string_view> words;
  };
  const Kind kinds[] = {{"an animal", kAnimals}, {"a colour", kColours},  {"a town", kTowns},
                        {"a job", kJobs},        {"a month", kMonths},    {"a day of the week", kDays},
                        {"a name", kNames},      {"an object", kObjects}, {"an instrument", kInstruments}};
  const size_t asked = draw.below(std::size(kinds));
  std::vector<std::string_view> words;
  const std::string_view right = draw.pick(kinds[asked].words);
  words.push_back(right);
  while (words.size() < 3) {
    const size_t other = draw.below(std::size(kinds));
    const size_t sum = asked + other;
    // A town may be a name, an instrument may be an object.
    const bool is_alike = other == asked || (sum == 8 && (asked == 2 || other == 2)) || sum == 15;
    if (!is_alike) words.push_back(draw.pick(kinds[other].words));
  }
  for (size_t i = words.size(); i > 1; --i) std::swap(words[i - 1], words[draw.below(i)]);
  const std::string list = cat(words[0], ", ", words[1], ", ", words[2]);
  const std::string sentence = cat(capitalized(std::string(right)), " is ", kinds[asked].name, ".");
  return {cat("choice:", kinds[asked].name, ":", list), fill(draw.pick(kForms), {list, kinds[asked].name}), sentence,
          sentence, capitalized(std::string(right))};
}

Task draw_unknown(ChatDraw& draw) {
  constexpr std::string_view kForms[] = {"Who built the {1} in {0}?",
                                         "How many people live in {0}?",
                                         "What is {0} known for?",
                                         "Who is the mayor of {0}?",
                                         "When was {0} founded?",
                                         "Write a poem about the {2}.",
                                         "Write a story about a {3} and a {1}.",
                                         "Translate \"{2}\" into French.",
                                         "Why do people like {4}?",
                                         "How do I cook {4}?",
                                         "Who invented the {1}?",
                                         "How does a {1} work?",
                                         "What do you think about {0}?",
                                         "How old can a {3} get?",
                                         "Explain how a {5} works.",
                                         "What is the capital of {0}?",
                                         "Tell me a joke about a {5}.",
                                         "What is the news from {0}?",
                                         "Who won the game in {0}?",
                                         "Which film about a {3} is the best?"};
  const std::string_view town = draw.pick(kTowns);
  const std::string_view object = draw.pick(kObjects);
  const std::string_view word = draw.pick(kPlainWords);
  const std::string_view animal = draw.pick(kAnimals);
  const std::string_view food = draw.pick(kFoods);
  const std::string question = fill(draw.pick(kForms), {town, object, word, animal, food, draw.pick(kJobs)});
  return {cat("unknown:", question), question, "I do not know this, and I must not guess.",
          "I do not know that. I am a very small model and know little about the world.", "I do not know that."};
}

}  // namespace

void make_everyday(ChatContext& context, ChatExample& example) {
  constexpr Task (*kTasks[])(ChatDraw&) = {draw_next,     draw_count,  draw_compare,
                                           draw_spelling, draw_choice, draw_unknown};
  ChatDraw& draw = context.draw;
  const auto make = kTasks[draw.below(std::size(kTasks))];
  const Task task = draw.item([&] { return make(draw); });
  example.request.messages.push_back(user_message(task.question));
  example.reply = assistant_message(
      context.think(task.reasoning, task.reasoning, cat("This is a short question. ", task.reasoning)), task.reply);
  example.answer = task.answer;
}

}  // namespace tandem
