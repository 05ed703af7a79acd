// corpus/chat_words.cpp: the words of the generator's world and the sentences that fill gaps.
#include "base/cat.h"
#include "corpus/chat_family.h"

namespace tandem {
namespace {

constexpr std::string_view kNameList[] = {
    "Mira",  "Theo",   "Ada",    "Jonas", "Lena",  "Omar",   "Priya",  "Felix",  "Nora", "Hugo",   "Ines",   "Karl",
    "Sofia", "Tomas",  "Yuki",   "Amir",  "Greta", "Pablo",  "Zoe",    "Viktor", "Ravi", "Elena",  "Marcus", "Alice",
    "Ben",   "Clara",  "David",  "Emma",  "Frank", "Grace",  "Henry",  "Ivy",    "Jack", "Kate",   "Liam",   "Mary",
    "Noah",  "Olivia", "Peter",  "Quinn", "Rosa",  "Samuel", "Tara",   "Uma",    "Vera", "Walter", "Xena",   "Yara",
    "Anton", "Bianca", "Cedric", "Dalia", "Emil",  "Fatima", "Gustav", "Hannah", "Igor", "Julia",  "Kofi",   "Laura"};
constexpr std::string_view kTownList[] = {
    "Oslo",    "Paris",  "Lima",    "Cairo",   "Delhi",  "Tokyo",  "Rome",    "Berlin",  "Madrid",  "Vienna",
    "Prague",  "Dublin", "Athens",  "Lisbon",  "Warsaw", "Zurich", "Geneva",  "Milan",   "Naples",  "Turin",
    "Hamburg", "Munich", "Leipzig", "Lyon",    "Nice",   "Ghent",  "Bruges",  "Utrecht", "Malmo",   "Bergen",
    "Turku",   "Riga",   "Tallinn", "Vilnius", "Krakow", "Gdansk", "Split",   "Zagreb",  "Sofia",   "Varna",
    "Quito",   "Bogota", "Havana",  "Boston",  "Denver", "Austin", "Seattle", "Chicago", "Toronto", "Montreal",
    "Sydney",  "Perth",  "Osaka",   "Kyoto",   "Seoul",  "Taipei", "Hanoi",   "Manila",  "Nairobi", "Accra"};
constexpr std::string_view kObjectList[] = {
    "lamp",   "chair", "bottle",  "basket",  "ladder", "mirror",  "kettle", "blanket", "candle",   "hammer",
    "map",    "clock", "parasol", "bicycle", "guitar", "camera",  "carpet", "pillow",  "suitcase", "notebook",
    "pencil", "spoon", "teapot",  "wallet",  "helmet", "lantern", "rope",   "bucket",  "brush",    "scarf",
    "coat",   "ring",  "compass", "vase",    "stool",  "radio",   "drum",   "puzzle",  "kite",     "telescope"};
constexpr std::string_view kColourList[] = {"red",  "blue",  "green", "yellow", "purple", "orange", "pink", "brown",
                                            "grey", "black", "white", "teal",   "violet", "silver", "gold", "beige"};
constexpr std::string_view kAnimalList[] = {
    "beaver", "robin", "fox",   "badger", "heron", "lynx",  "panda", "tiger", "horse",    "rabbit", "crow", "whale",
    "turtle", "koala", "moose", "falcon", "goat",  "sheep", "bear",  "wolf",  "hedgehog", "seal",   "swan", "camel"};
constexpr std::string_view kFoodList[] = {"soup",  "rice",   "pasta",   "bread", "curry", "salad",    "cheese",
                                          "pizza", "fish",   "noodles", "beans", "plums", "apples",   "pears",
                                          "honey", "olives", "yogurt",  "cake",  "corn",  "pancakes", "lentils"};
constexpr std::string_view kJobList[] = {
    "baker",   "nurse",    "teacher", "pilot",   "farmer", "painter", "lawyer", "plumber", "carpenter", "singer",
    "dentist", "gardener", "tailor",  "chemist", "sailor", "writer",  "judge",  "cook",    "miner",     "librarian"};
constexpr std::string_view kDayList[] = {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"};
constexpr std::string_view kMonthList[] = {"January", "February", "March",     "April",   "May",      "June",
                                           "July",    "August",   "September", "October", "November", "December"};
constexpr std::string_view kInstrumentList[] = {"piano", "violin", "flute", "cello",    "trumpet",
                                                "harp",  "banjo",  "oboe",  "clarinet", "organ"};
constexpr std::string_view kPlainWordList[] = {
    "river",   "stone",   "window", "garden", "silver", "bridge", "summer",  "forest",   "market",  "winter",
    "harbour", "island",  "valley", "meadow", "castle", "street", "village", "mountain", "morning", "evening",
    "cloud",   "thunder", "copper", "marble", "linen",  "pepper", "cotton",  "anchor",   "button",  "candle",
    "feather", "ginger",  "hollow", "jungle", "kernel", "ladder", "mantle",  "needle",   "orchard", "pebble",
    "quartz",  "ribbon",  "saddle", "timber", "velvet", "willow", "yonder",  "zephyr",   "amber",   "beacon"};

constexpr std::string_view kRoomList[] = {"kitchen", "hall",     "office", "bedroom", "garage", "bathroom",
                                          "cellar",  "attic",    "study",  "nursery", "garden", "library",
                                          "stable",  "workshop", "pantry", "lobby"};

// Nobody of kNames and no attribute of a fact is in these, so that filler never answers a question.
constexpr std::string_view kFillerForms[] = {
    "The old mill near the {0} was closed for the {1}.",
    "Rain fell on the {0} until the {1} was wet.",
    "A {2} stood beside the {0}, and nobody moved it.",
    "In {3} the {0} is quiet and the {1} is slow.",
    "They carried a {2} over the {0} before noon.",
    "Visitors often ask why the {0} has no {1}.",
    "The road to the {0} is long, but the {1} is worth it.",
    "Someone left a {2} on the steps of the {0}.",
    "Every {3} the people repair the {0} and paint the {1}.",
    "A {4} slept under the {0} while the wind shook the {1}.",
    "The guide spoke about the {0}, then about the {1}.",
    "It is said that the {0} was built before the {1}.",
    "Two boats crossed the bay with a {2} and a {4} on board.",
    "The letter described the {0} in great detail.",
    "From the {0} one can see the {1} on a clear day.",
    "The shop sells a {2} for the price of two.",
    "Nobody knew how old the {0} was, and nobody asked.",
    "When the bell rang, the {4} ran behind the {0}.",
    "A long wall divides the {0} from the {1}.",
    "During {3} the market opens late, and the {2} is sold first.",
    "Under the {0} there was an old {2} full of sand.",
    "Most people walk past the {0} without looking at the {1}.",
    "The painter needed three days for the {0} and one for the {4}.",
    "Later that year the {1} was moved closer to the {0}.",
};

}  // namespace

const std::span<const std::string_view> kNames = kNameList, kTowns = kTownList, kObjects = kObjectList,
                                        kColours = kColourList, kAnimals = kAnimalList, kFoods = kFoodList,
                                        kJobs = kJobList, kDays = kDayList, kMonths = kMonthList,
                                        kInstruments = kInstrumentList, kPlainWords = kPlainWordList,
                                        kRooms = kRoomList;

int64_t text_tokens(const Tokenizer* tokenizer, std::string_view text) {
  return tokenizer == nullptr ? static_cast<int64_t>(text.size() / 4)
                              : static_cast<int64_t>(tokenizer->encode_text(text).size());
}

Message user_message(std::string text) { return text_message(Role::kUser, std::move(text)); }

Message assistant_message(std::string reasoning, std::string text) {
  Message message = text_message(Role::kAssistant, std::move(text));
  message.reasoning = std::move(reasoning);
  return message;
}

std::string filler_sentence(ChatDraw& draw) {
  const std::string_view form = draw.pick(kFillerForms);
  const std::string_view first = draw.pick(kPlainWords);
  std::string_view second = draw.pick(kPlainWords);
  while (second == first) second = draw.pick(kPlainWords);
  const std::string_view object = draw.pick(kObjects);
  const std::string_view month = draw.pick(kMonths);
  return fill(form, {first, second, object, month, draw.pick(kAnimals)});
}

std::string draw_date(ChatDraw& draw) {
  const int64_t day = draw.between(1, 28);
  return cat(day, " ", draw.pick(kMonths));
}

std::string filler_text(ChatContext& context, int64_t tokens) {
  std::string text;
  int64_t length = 0;
  int64_t in_paragraph = 0;
  const auto append = [&](std::string_view gap, std::string_view next, int64_t next_tokens) {
    text += gap;
    text += next;
    length += next_tokens;
  };
  while (length < tokens) {
    if (!context.prose.empty() && tokens - length > 64 && context.draw.chance(20)) {
      const size_t index = context.draw.below(context.prose.size());
      if (context.prose_tokens[index] <= tokens - length) {
        append(text.empty() ? "" : "\n\n", context.prose[index], context.prose_tokens[index]);
        in_paragraph = 5;  // a paragraph of its own
        continue;
      }
    }
    const bool breaks = in_paragraph >= 5;
    const std::string next = cat(text.empty() ? "" : breaks ? "\n\n" : " ", filler_sentence(context.draw));
    in_paragraph = breaks ? 1 : in_paragraph + 1;
    append("", next, text_tokens(context.tokenizer, next));
  }
  return text;
}

}  // namespace tandem
