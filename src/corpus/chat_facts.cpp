// corpus/chat_facts.cpp: facts of the generator's world: what somebody has, is called or likes, where a thing is.
#include "base/cat.h"
#include "corpus/chat_family.h"

namespace tandem {
namespace {

// {0}: whose, {1}: what, {2}: the value.
constexpr std::string_view kStatementForms[] = {"{0} {1} is {2}.",
                                                "Remember this: {0} {1} is {2}.",
                                                "Please remember that {0} {1} is {2}.",
                                                "Please note that {0} {1} is {2}.",
                                                "By the way, {0} {1} is {2}.",
                                                "Keep in mind that {0} {1} is {2}.",
                                                "For later: {0} {1} is {2}.",
                                                "Here is something important: {0} {1} is {2}."};
constexpr std::string_view kQuestionForms[] = {"What is {0} {1}?",
                                               "What's {0} {1}?",
                                               "what is {0} {1}",
                                               "What was {0} {1}?",
                                               "What was {0} {1} again?",
                                               "Can you tell me {0} {1}?",
                                               "Do you remember {0} {1}?",
                                               "Do you know {0} {1}?",
                                               "Please tell me {0} {1}.",
                                               "Tell me {0} {1}.",
                                               "Remind me: what is {0} {1}?",
                                               "What did I say {0} {1} is?",
                                               "I forgot {0} {1}. What is it?"};
constexpr std::string_view kNameStatements[] = {"My name is {0}.", "I am {0}.",
                                                "I'm {0}.",        "You can call me {0}.",
                                                "my name is {0}.", "By the way, my name is {0}."};
constexpr std::string_view kNameQuestions[] = {
    "What is my name?",     "what is my name",          "What's my name?",  "Do you remember my name?", "Who am I?",
    "Do you know my name?", "Can you tell me my name?", "Tell me my name.", "What was my name again?"};
constexpr std::string_view kPlaceStatements[] = {"The {0} is in the {1}.", "I put the {0} in the {1}.",
                                                 "Remember: the {0} is in the {1}.", "You can find the {0} in the {1}.",
                                                 "The {0} was left in the {1}."};
constexpr std::string_view kPlaceQuestions[] = {"Where is the {0}?",
                                                "where is the {0}",
                                                "Where can I find the {0}?",
                                                "In which room is the {0}?",
                                                "Do you know where the {0} is?",
                                                "Which room is the {0} in?"};

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

std::string draw_code(ChatDraw& draw) {
  constexpr std::string_view kLetters = "ABCDEFGHJKLMNPQRSTUVWXYZ";
  std::string out;
  for (int i = 0; i < 2; ++i) out += kLetters[draw.below(kLetters.size())];
  return cat(out, "-", draw.between(100, 9999));
}

constexpr Attribute kAttributes[] = {
    {"locker code", [](ChatDraw& d) { return cat(d.between(1000, 9999)); }},
    {"phone number", [](ChatDraw& d) { return cat(d.between(100000, 999999)); }},
    {"lucky number", [](ChatDraw& d) { return cat(d.between(11, 999)); }},
    {"room number", [](ChatDraw& d) { return cat(d.between(1, 499)); }},
    {"bus line", [](ChatDraw& d) { return cat(d.between(1, 99)); }},
    {"house number", [](ChatDraw& d) { return cat(d.between(1, 499)); }},
    {"ticket code", draw_code},
    {"password", draw_password},
    {"favourite colour", [](ChatDraw& d) { return word_of(d, kColours); }},
    {"favourite animal", [](ChatDraw& d) { return cat("the ", d.pick(kAnimals)); }},
    {"favourite food", [](ChatDraw& d) { return word_of(d, kFoods); }},
    {"home town", [](ChatDraw& d) { return word_of(d, kTowns); }},
    {"instrument", [](ChatDraw& d) { return cat("the ", d.pick(kInstruments)); }},
    {"job", [](ChatDraw& d) { return word_of(d, kJobs); }},
    {"birthday", draw_date},
    {"best friend", [](ChatDraw& d) { return word_of(d, kNames); }},
    {"dog's name", [](ChatDraw& d) { return capitalized(word_of(d, kPlainWords)); }},
    {"cat's name", [](ChatDraw& d) { return capitalized(word_of(d, kFoods)); }},
    {"boat's name",
     [](ChatDraw& d) {
       const std::string first = capitalized(word_of(d, kColours));
       return cat(first, " ", capitalized(word_of(d, kAnimals)));
     }},
};
// Of nobody: "the secret word".
constexpr Attribute kThings[] = {
    {"secret word", [](ChatDraw& d) { return word_of(d, kPlainWords); }},
    {"magic number", [](ChatDraw& d) { return cat(d.between(1000, 99999)); }},
    {"door code", [](ChatDraw& d) { return cat(d.between(1000, 9999)); }},
    {"order number", draw_code},
    {"meeting point", [](ChatDraw& d) { return cat("the ", d.pick(kPlainWords)); }},
    {"meeting day", [](ChatDraw& d) { return word_of(d, kDays); }},
};
constexpr std::string_view kMine[] = {"my",           "my",          "my",          "my sister's",
                                      "my brother's", "my mother's", "my father's", "my neighbour's",
                                      "my teacher's", "my friend's"};

// "my sister's" → "your sister's"
std::string yours(const std::string& owner) { return owner.starts_with("my") ? cat("your", owner.substr(2)) : owner; }
std::string theirs(const std::string& owner) {
  return owner.starts_with("my") ? cat("the user's", owner.substr(2)) : owner;
}

Fact draw_attribute(ChatDraw& draw) {
  Fact fact;
  const uint64_t kind = draw.below(20);
  const bool is_thing = kind < 3;
  const std::string owner = is_thing ? "the" : kind < 8 ? std::string(draw.pick(kMine)) : cat(draw.pick(kNames), "'s");
  const Attribute& attribute =
      is_thing ? kThings[draw.below(std::size(kThings))] : kAttributes[draw.below(std::size(kAttributes))];
  fact.value = attribute.value(draw);
  fact.subject = cat(owner, " ", attribute.name);
  fact.key = cat("fact:", owner, ":", attribute.name, ":", fact.value);
  fact.is_mine = owner.starts_with("my");
  fact.statement = capitalized(fill(draw.pick(kStatementForms), {owner, attribute.name, fact.value}));
  fact.question = capitalized(fill(draw.pick(kQuestionForms), {owner, attribute.name}));
  fact.answer = capitalized(cat(yours(owner), " ", attribute.name, " is ", fact.value, "."));
  fact.found = capitalized(cat(theirs(owner), " ", attribute.name, " is ", fact.value, "."));
  return fact;
}

Fact draw_name(ChatDraw& draw) {
  Fact fact;
  fact.value = draw.pick(kNames);
  fact.subject = "my name";
  const std::string_view statement = draw.pick(kNameStatements);
  const std::string_view question = draw.pick(kNameQuestions);
  // The wording is part of the key: there are few names, and each must be learned.
  fact.key = cat("fact:my name:", fact.value, ":", statement, ":", question);
  fact.is_mine = true;
  fact.statement = fill(statement, {fact.value});
  fact.question = question;
  fact.answer = cat("Your name is ", fact.value, ".");
  fact.found = cat("The user's name is ", fact.value, ".");
  return fact;
}

Fact draw_place(ChatDraw& draw) {
  Fact fact;
  const std::string_view colour = draw.pick(kColours);
  const std::string thing = cat(colour, " ", draw.pick(kObjects));
  const std::string_view room = draw.pick(kRooms);
  fact.value = cat("the ", room);
  fact.subject = cat("the ", thing);
  fact.key = cat("fact:place:", thing, ":", room);
  fact.statement = fill(draw.pick(kPlaceStatements), {thing, room});
  fact.is_mine = fact.statement.starts_with("I ");
  fact.question = fill(draw.pick(kPlaceQuestions), {thing});
  fact.answer = cat("The ", thing, " is in the ", room, ".");
  fact.found = fact.answer;
  return fact;
}

}  // namespace

Fact draw_fact(ChatDraw& draw) {
  return draw.item([&] {
    const uint64_t kind = draw.below(20);
    return kind < 2 ? draw_name(draw) : kind < 5 ? draw_place(draw) : draw_attribute(draw);
  });
}

std::string fact_reasoning(const ChatContext& context, const Fact& fact) {
  const std::string asked = cat("The user asks for something that was said before. ", fact.found);
  return context.think(fact.found, asked, cat(asked, " Nothing later changes that."));
}

}  // namespace tandem
