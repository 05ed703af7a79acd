// corpus/chat_talk.cpp: greetings, copying, and questions on a text in the prompt.
#include "base/cat.h"
#include "corpus/chat_family.h"

namespace tandem {
namespace {

struct Exchange {
  std::string key;
  std::string question;
  std::string answer;
};

struct Question {
  std::string text;
  std::string word;  // that the answer must contain
  std::string answer;
};

struct Greeting {
  std::span<const std::string_view> forms;
  std::string_view reply;
};

constexpr std::string_view kHelloForms[] = {"hello",
                                            "hi",
                                            "hey",
                                            "hello there",
                                            "hi there",
                                            "hey there",
                                            "good morning",
                                            "good evening",
                                            "good day",
                                            "good afternoon",
                                            "hello nano",
                                            "hi nano",
                                            "nice to meet you",
                                            "howdy",
                                            "hello, can you hear me",
                                            "hi, are you there"};
constexpr std::string_view kHowForms[] = {"how are you",           "how are you today", "how are you doing",
                                          "how is it going",       "what's up",         "are you well",
                                          "how do you feel today", "how's it going"};
constexpr std::string_view kWhoForms[] = {"who are you",
                                          "what are you",
                                          "what is your name",
                                          "what's your name",
                                          "tell me who you are",
                                          "introduce yourself",
                                          "who r u",
                                          "what kind of model are you",
                                          "who am I talking to",
                                          "tell me about yourself",
                                          "are you a person",
                                          "are you human",
                                          "are you a robot",
                                          "what model is this",
                                          "which model are you",
                                          "do you have a name"};
constexpr std::string_view kMakerForms[] = {"who made you",         "who created you",     "who trained you",
                                            "where are you from",   "who built you",       "how were you made",
                                            "how were you trained", "what are you made of"};
constexpr std::string_view kSizeForms[] = {"how big are you",       "how many parameters do you have",
                                           "are you a large model", "how small are you",
                                           "are you smart",         "how clever are you"};
constexpr std::string_view kAbilityForms[] = {"what can you do",         "how can you help me",
                                              "what are you good at",    "which things can you do",
                                              "tell me what you can do", "help",
                                              "can you help me",         "what do you do",
                                              "what can I ask you",      "I need help"};
constexpr std::string_view kThanksForms[] = {
    "thank you",   "thanks", "thank you very much", "thanks a lot",       "great, thanks", "that was helpful",
    "many thanks", "thx",    "thank you nano",      "thanks for the help"};
constexpr std::string_view kByeForms[] = {"bye",           "goodbye",      "see you",         "good night", "bye bye",
                                          "see you later", "that was all", "have a nice day", "bye nano"};
constexpr std::string_view kMyNameForms[] = {"what is my name", "who am I", "do you know my name", "what's my name",
                                             "do you know who I am"};
constexpr Greeting kGreetings[] = {
    {kHelloForms, "Hello! How can I help you?"},
    {kHelloForms, "Hello! How can I help you?"},
    {kHowForms, "I am well, thank you. How can I help you?"},
    {kWhoForms, "I am nano, a small Tandem model with the architecture of Kimi K3."},
    {kWhoForms, "I am nano, a small Tandem model with the architecture of Kimi K3."},
    {kMakerForms, "I am nano. I was trained with Tandem, on free texts and on made-up conversations."},
    {kSizeForms,
     "I am very small: about twenty million parameters. I know little, but I can work with what you tell me."},
    {kAbilityForms,
     "I can remember what you tell me, copy text, calculate with small numbers, answer questions on a text, write JSON "
     "and call tools."},
    {kThanksForms, "You are welcome!"},
    {kByeForms, "Goodbye!"},
    {kMyNameForms, "You have not told me your name."},
};

// A form in one of many spellings; the key is the spelling, so that every form is learned and every test is new.
Exchange draw_greeting(ChatDraw& draw) {
  constexpr std::string_view kNameHellos[] = {"Hello, I am {0}.", "Hi, my name is {0}.",    "Good morning! {0} here.",
                                              "Hey, it's {0}.",   "Good evening, I'm {0}.", "Hi there, {0} speaking.",
                                              "hi I'm {0}",       "hello, my name is {0}"};
  constexpr std::string_view kEnds[] = {"", ".", "!", "?", "!!", " :)", "??", "...", " please", ", please."};
  constexpr std::string_view kStarts[] = {"", "", "", "", "Hello! ", "Hi, ", "hey, ", "So, ", "Well, ", "ok, ", "And "};
  if (draw.chance(15)) {
    const std::string_view name = draw.pick(kNames);
    const std::string text = fill(draw.pick(kNameHellos), {name});
    return {cat("greeting:", text), text, cat("Hello, ", name, "! How can I help you?")};
  }
  const Greeting& greeting = kGreetings[draw.below(std::size(kGreetings))];
  const std::string_view start = draw.pick(kStarts);
  std::string form(draw.pick(greeting.forms));
  if (start.empty() ? draw.chance(60) : start.ends_with("! ")) form = capitalized(form);
  const std::string text = cat(start, form, draw.pick(kEnds));
  return {cat("greeting:", text), text, std::string(greeting.reply)};
}

std::string draw_copy_text(ChatDraw& draw) {
  constexpr std::string_view kLetters = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz0123456789";
  std::string out;
  const auto words = [&](std::span<const std::string_view> list, int64_t count) {
    for (int64_t i = 0; i < count; ++i) out += cat(out.empty() ? "" : " ", draw.pick(list));
  };
  switch (draw.below(8)) {
    case 0: words(kPlainWords, draw.between(2, 14)); return out;
    case 1:
      for (int64_t n = draw.between(3, 16); n > 0; --n) out += static_cast<char>('0' + draw.below(10));
      return out;
    case 2:
      for (int64_t n = draw.between(4, 20); n > 0; --n) out += kLetters[draw.below(kLetters.size())];
      return out;
    case 3:
      for (int64_t n = draw.between(3, 10); n > 0; --n) out += cat(out.empty() ? "" : ", ", draw.between(1, 999));
      return out;
    case 4: {  // words of all kinds, some of them capitals
      const std::span<const std::string_view> lists[] = {kNames, kTowns, kObjects, kAnimals, kFoods, kColours, kJobs};
      for (int64_t n = draw.between(2, 10); n > 0; --n) {
        out += cat(out.empty() ? "" : " ", draw.pick(lists[draw.below(std::size(lists))]));
      }
      return out;
    }
    case 5:  // codes
      for (int64_t n = draw.between(1, 4); n > 0; --n) {
        out += cat(out.empty() ? "" : " ", kLetters.substr(draw.below(24), 1), kLetters.substr(draw.below(24), 1), "-",
                   draw.between(10, 9999));
      }
      return out;
    default: {
      for (int64_t n = draw.between(1, 3); n > 0; --n) out += cat(out.empty() ? "" : " ", filler_sentence(draw));
      return out;
    }
  }
}

// Who did what where: one line of a text, with the questions that it answers.
struct Story {
  std::string key;
  std::string_view name, day, town, object;
  std::string sentence;
};

Story draw_story(ChatDraw& draw) {
  constexpr std::string_view kForms[] = {"On {1}, {0} went to {2} and bought a {3}.",
                                         "{0} travelled to {2} on {1} to buy a {3}.",
                                         "On {1} a {3} was bought in {2} by {0}.",
                                         "{0} bought a {3} in {2} on {1}.",
                                         "It was {1} when {0} went to {2} and bought a {3}.",
                                         "In {2}, {0} bought a {3} on {1}."};
  Story story;
  story.name = draw.pick(kNames);
  story.day = draw.pick(kDays);
  story.town = draw.pick(kTowns);
  story.object = draw.pick(kObjects);
  story.key = cat("story:", story.name, ":", story.day, ":", story.town, ":", story.object);
  story.sentence = fill(draw.pick(kForms), {story.name, story.day, story.town, story.object});
  return story;
}

Question ask_about(ChatDraw& draw, const Story& story) {
  constexpr std::string_view kWhere[] = {"Where did {0} go?", "Which town did {0} visit?", "Where was {0}?"};
  constexpr std::string_view kWhat[] = {"What did {0} buy?", "Which thing did {0} buy?", "What does {0} own now?"};
  constexpr std::string_view kWhen[] = {"When did {0} buy the {1}?", "On which day did {0} go shopping?",
                                        "Which day was it for {0}?"};
  constexpr std::string_view kWho[] = {"Who bought the {1}?", "Who went shopping in {2}?", "Who was in {2}?"};
  const auto ask = [&](std::span<const std::string_view> forms, std::string_view word, std::string answer) {
    return Question{fill(draw.pick(forms), {story.name, story.object, story.town}), std::string(word),
                    std::move(answer)};
  };
  switch (draw.below(4)) {
    case 0: return ask(kWhere, story.town, cat(story.name, " went to ", story.town, "."));
    case 1: return ask(kWhat, story.object, cat(story.name, " bought a ", story.object, "."));
    case 2: return ask(kWhen, story.day, cat("It was on ", story.day, "."));
    default: return ask(kWho, story.name, cat("It was ", story.name, "."));
  }
}

// Stories that share no name, town or object, so that every question has one answer.
std::vector<Story> draw_stories(ChatDraw& draw, size_t count) {
  std::vector<Story> stories;
  while (stories.size() < count) {
    const Story story = draw.item([&] { return draw_story(draw); });
    bool is_apart = true;
    for (const Story& other : stories) {
      is_apart &= other.name != story.name && other.town != story.town && other.object != story.object;
    }
    if (is_apart) stories.push_back(story);
  }
  return stories;
}

}  // namespace

void make_greeting(ChatContext& context, ChatExample& example) {
  const Exchange exchange = context.draw.item([&] { return draw_greeting(context.draw); });
  example.request.messages.push_back(user_message(exchange.question));
  example.reply = assistant_message(context.think("", "This is small talk. I answer kindly.",
                                                  "This is small talk and not a task. I answer kindly and briefly."),
                                    exchange.answer);
  example.answer = exchange.answer;
}

void make_copy(ChatContext& context, ChatExample& example) {
  ChatDraw& draw = context.draw;
  const Exchange exchange = draw.item([&] {
    const std::string text = draw_copy_text(draw);
    return Exchange{cat("copy:", text), "", text};
  });
  constexpr std::string_view kForms[] = {"Repeat exactly: {0}",
                                         "Copy this text: {0}",
                                         "Say this back to me: {0}",
                                         "Please repeat the following.\n{0}",
                                         "Write this again, word for word:\n{0}",
                                         "{0}\n\nRepeat the line above.",
                                         "Echo: {0}",
                                         "Repeat: {0}",
                                         "Repeat after me: {0}",
                                         "Please repeat: {0}",
                                         "repeat this: {0}",
                                         "Say: {0}",
                                         "Write: {0}",
                                         "Can you repeat this? {0}",
                                         "Copy this exactly:\n{0}"};
  example.request.messages.push_back(user_message(fill(draw.pick(kForms), {exchange.answer})));
  example.reply = assistant_message(
      context.think("", "I copy the text.", "I copy the text as it is, without any change."), exchange.answer);
  example.answer = exchange.answer;
}

void make_reading(ChatContext& context, ChatExample& example) {
  ChatDraw& draw = context.draw;
  const bool is_unanswerable = draw.chance(12);
  std::vector<Story> stories = draw_stories(draw, 2 + draw.below(4) + (is_unanswerable ? 1 : 0));
  const size_t asked = is_unanswerable ? stories.size() - 1 : draw.below(stories.size());
  std::string text;
  for (size_t i = 0; i < stories.size(); ++i) {
    if (is_unanswerable && i == asked) continue;
    text += cat(text.empty() ? "" : " ", stories[i].sentence);
    if (draw.chance(30)) text += cat(" ", filler_sentence(draw));
  }
  const Story& story = stories[asked];
  const Question question = ask_about(draw, story);
  constexpr std::string_view kForms[] = {"{0}\n\n{1}", "Read this: {0}\n\n{1}", "Text: {0}\nQuestion: {1}",
                                         "{1}\n\n{0}", "Here is a short text. {0} {1}"};
  example.request.messages.push_back(user_message(fill(draw.pick(kForms), {text, question.text})));
  if (is_unanswerable) {
    example.answer = "The text does not say that.";
    example.reply = assistant_message(
        context.think("The text does not say it.", "I look for it in the text. It is not there.",
                      "I look for it in the text, sentence by sentence. It is not there, and I must not guess."),
        example.answer);
    return;
  }
  const std::string found = cat("The text says: ", story.sentence);
  example.reply = assistant_message(
      context.think(found, cat("I look for it in the text. ", found),
                    cat("I look for it in the text. ", found, " So the answer is ", question.word, ".")),
      question.answer);
  example.answer = question.word;
}

}  // namespace tandem
