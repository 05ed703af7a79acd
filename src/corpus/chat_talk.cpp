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

Exchange draw_greeting(ChatDraw& draw) {
  constexpr std::string_view kHelloForms[] = {"Hello, I am {0}.", "Hi, my name is {0}.",    "Good morning! {0} here.",
                                              "Hey, it's {0}.",   "Good evening, I'm {0}.", "Hi there, {0} speaking."};
  constexpr std::string_view kPlainHellos[] = {"Hello!",       "Hi",  "Hey there", "Good morning", "Good evening!",
                                               "Hello there.", "hi!", "hello",     "Good day."};
  constexpr std::string_view kWhoForms[] = {
      "Who are you?",        "What are you?", "What is your name?",         "Tell me who you are.",
      "Introduce yourself.", "who r u",       "What kind of model are you?"};
  constexpr std::string_view kAbilityForms[] = {"What can you do?",         "How can you help me?",
                                                "What are you good at?",    "Which things can you do?",
                                                "Tell me what you can do.", "help"};
  constexpr std::string_view kThanksForms[] = {"Thank you, {0} is happy now.", "Thanks! {0} says thanks too.",
                                               "That was all, thank you from {0}.", "Great, thanks. Bye from {0}!",
                                               "{0} and I thank you."};
  const std::string_view name = draw.pick(kNames);
  switch (draw.below(5)) {
    case 0: {
      const std::string_view form = draw.pick(kHelloForms);
      return {cat("greeting:", form, ":", name), fill(form, {name}), cat("Hello, ", name, "! How can I help you?")};
    }
    case 1: {
      const std::string_view form = draw.pick(kPlainHellos);
      return {cat("greeting:", form), std::string(form), "Hello! How can I help you?"};
    }
    case 2: {
      const std::string_view form = draw.pick(kWhoForms);
      return {cat("greeting:", form), std::string(form),
              "I am nano, a very small language model with the architecture of Kimi K3, trained with Tandem."};
    }
    case 3: {
      const std::string_view form = draw.pick(kAbilityForms);
      return {
          cat("greeting:", form), std::string(form),
          "I can remember facts from our conversation, copy text, calculate with small numbers, answer questions on "
          "a text, write JSON and call tools."};
    }
    default: {
      const std::string_view form = draw.pick(kThanksForms);
      return {cat("greeting:", form, ":", name), fill(form, {name}), "You are welcome!"};
    }
  }
}

std::string draw_copy_text(ChatDraw& draw) {
  constexpr std::string_view kLetters = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz0123456789";
  std::string out;
  switch (draw.below(5)) {
    case 0:
      for (int64_t n = draw.between(3, 12); n > 0; --n) out += cat(out.empty() ? "" : " ", draw.pick(kPlainWords));
      return out;
    case 1:
      for (int64_t n = draw.between(4, 16); n > 0; --n) out += static_cast<char>('0' + draw.below(10));
      return out;
    case 2:
      for (int64_t n = draw.between(6, 20); n > 0; --n) out += kLetters[draw.below(kLetters.size())];
      return out;
    case 3:
      for (int64_t n = draw.between(3, 8); n > 0; --n) out += cat(out.empty() ? "" : ", ", draw.between(1, 999));
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
                                         "Echo: {0}"};
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
