#include "corpus/chat_tool_cases.h"

#include "base/cat.h"
#include "corpus/chat_family.h"
#include "text/json_format.h"

namespace tandem {
namespace {

JsonValue object(std::initializer_list<JsonValue::Member> members) {
  JsonValue out = JsonValue::object();
  out.mutable_members().assign(members.begin(), members.end());
  return out;
}
JsonValue text(std::string_view value) { return JsonValue::string(std::string(value)); }
JsonValue integer(int64_t value) { return JsonValue::number(cat(value)); }

std::string clock_time(ChatDraw& draw) {
  const int64_t hour = draw.between(7, 22);
  const int64_t minute = draw.between(0, 11) * 5;
  return cat(hour, minute < 10 ? ":0" : ":", minute);
}

ToolCase draw_weather(ChatDraw& draw) {
  constexpr std::string_view kForms[] = {
      "What is the weather in {0}, in degrees {1}?",    "How warm is it in {0}? Use {1}.",
      "Is it cold in {0} today? Please answer in {1}.", "Weather in {0} please, {1}.",
      "Tell me the temperature in {0} in {1}.",         "Give me the weather of {0} with {1}."};
  constexpr std::string_view kPlainForms[] = {"What is the weather in {0}?",
                                              "What's the weather like in {0}?",
                                              "How is the weather in {0}?",
                                              "what is the weather in {0}",
                                              "Weather in {0}?",
                                              "How warm is it in {0} today?",
                                              "Is it cold in {0}?",
                                              "Tell me the weather in {0}.",
                                              "Do I need a coat in {0}?"};
  constexpr std::string_view kSkies[] = {"sunny", "cloudy", "rainy", "windy", "foggy", "snowy"};
  const std::string_view town = draw.pick(kTowns);
  const bool says_unit = draw.chance(55);
  const bool celsius = draw.chance(60);
  const std::string_view unit = celsius ? "celsius" : "fahrenheit";
  const int64_t degrees = celsius ? draw.between(-12, 38) : draw.between(10, 100);
  const std::string_view sky = draw.pick(kSkies);
  ToolCase out;
  out.key = cat("call:weather:", town, ":", says_unit ? unit : "any");
  out.question = says_unit ? fill(draw.pick(kForms), {town, celsius ? "Celsius" : "Fahrenheit"})
                           : fill(draw.pick(kPlainForms), {town});
  out.arguments = object({{"city", text(town)}});
  if (says_unit) out.arguments.mutable_members().emplace_back("unit", text(unit));
  out.result = cat("{\"temperature\": ", degrees, ", \"unit\": \"", unit, "\", \"sky\": \"", sky, "\"}");
  out.sentence = cat("It is ", degrees, celsius ? " °C" : " °F", " and ", sky, " in ", town, ".");
  out.answer = cat("It is ", degrees, " ");
  return out;
}

ToolCase draw_timer(ChatDraw& draw) {
  constexpr std::string_view kForms[] = {"Set a timer of {0} minutes for the {1}.", "Please time the {1}: {0} minutes.",
                                         "Start a {0} minute timer called {1}.",
                                         "I need a timer, {0} minutes, for {1}.",
                                         "Remind me about the {1} in {0} minutes."};
  const int64_t minutes = draw.between(1, 90);
  const std::string_view label = draw.pick(kFoods);
  const int64_t id = draw.between(100, 999);
  ToolCase out;
  out.key = cat("call:timer:", minutes, ":", label);
  out.question = fill(draw.pick(kForms), {cat(minutes), label});
  out.arguments = object({{"minutes", integer(minutes)}, {"label", text(label)}});
  out.result = cat("{\"timer_id\": ", id, "}");
  out.sentence = cat("Timer ", id, " is set: ", minutes, " minutes for ", label, ".");
  out.answer = cat("Timer ", id);
  return out;
}

ToolCase draw_currency(ChatDraw& draw) {
  constexpr std::string_view kForms[] = {"Convert {0} {1} to {2}.", "How much is {0} {1} in {2}?",
                                         "What are {0} {1} worth in {2}?", "I have {0} {1}. How many {2} is that?",
                                         "Change {0} {1} into {2}, please."};
  constexpr std::string_view kCurrencies[] = {"EUR", "USD", "GBP", "JPY", "CHF", "SEK", "NOK", "CAD", "INR", "BRL"};
  const std::string amount = draw.chance(50) ? cat(draw.between(1, 900)) : cat(draw.between(1, 900), ".5");
  const std::string_view from = draw.pick(kCurrencies);
  std::string_view to = draw.pick(kCurrencies);
  while (to == from) to = draw.pick(kCurrencies);
  const int64_t whole = draw.between(2, 1999);
  const std::string converted = cat(whole, ".", draw.between(1, 9));
  ToolCase out;
  out.key = cat("call:currency:", amount, ":", from, ":", to);
  out.question = fill(draw.pick(kForms), {amount, from, to});
  out.arguments = object({{"amount", JsonValue::number(amount)}, {"from", text(from)}, {"to", text(to)}});
  out.result = converted;
  out.sentence = cat(amount, " ", from, " is ", converted, " ", to, ".");
  out.answer = cat("is ", converted, " ");
  return out;
}

ToolCase draw_event(ChatDraw& draw) {
  constexpr std::string_view kForms[] = {
      "Plan a {0} on {1} with {2} and {3}.", "Put a {0} with {2} and {3} into my calendar for {1}.",
      "Schedule a {0} on {1}. Invite {2} and {3}.", "I want a {0} on {1}; {2} and {3} come too.",
      "Create the event {0} on {1}, guests: {2} and {3}."};
  constexpr std::string_view kTitles[] = {"dinner", "meeting", "walk", "concert", "picnic", "lesson", "party", "call"};
  const std::string_view title = draw.pick(kTitles);
  const std::string date = draw_date(draw);
  const std::string_view first = draw.pick(kNames);
  std::string_view second = draw.pick(kNames);
  while (second == first) second = draw.pick(kNames);
  JsonValue guests = JsonValue::array();
  guests.mutable_items() = {text(first), text(second)};
  const std::string time = clock_time(draw);
  ToolCase out;
  out.key = cat("call:event:", title, ":", date, ":", first, ":", second);
  out.question = fill(draw.pick(kForms), {title, date, first, second});
  out.arguments = object({{"title", text(title)}, {"date", text(date)}, {"guests", guests}});
  out.result = cat("{\"status\": \"created\", \"start\": \"", time, "\"}");
  out.sentence = cat("The ", title, " on ", date, " is planned and begins at ", time, ".");
  out.answer = time;
  return out;
}

ToolCase draw_message(ChatDraw& draw) {
  constexpr std::string_view kForms[] = {"Send {0} the message \"{1}\".", "Tell {0}: \"{1}\"", "Write to {0}: \"{1}\"",
                                         "Please text {0} \"{1}\".", "Let {0} know: \"{1}\""};
  constexpr std::string_view kTexts[] = {"I will be late by {0} minutes.", "Please bring the {1}.", "See you on {2}.",
                                         "The {1} is ready.", "Can you lend me your {1} on {2}?"};
  const std::string_view to = draw.pick(kNames);
  const std::string_view form = draw.pick(kTexts);
  const std::string_view thing = draw.pick(kObjects);
  const std::string_view day = draw.pick(kDays);
  const std::string body = fill(form, {cat(draw.between(5, 50)), thing, day});
  const std::string time = clock_time(draw);
  ToolCase out;
  out.key = cat("call:message:", to, ":", body);
  out.question = fill(draw.pick(kForms), {to, body});
  out.arguments = object({{"to", text(to)}, {"text", text(body)}});
  out.result = cat("delivered at ", time);
  out.sentence = cat("Your message to ", to, " was delivered at ", time, ".");
  out.answer = time;
  return out;
}

ToolCase draw_light(ChatDraw& draw) {
  constexpr std::string_view kOnForms[] = {"Turn on the light in the {0} at {1} percent.",
                                           "Light in the {0} on, {1} %.",
                                           "Please switch the {0} light on, brightness {1}.",
                                           "Set the {0} light to {1} percent.", "Make the {0} bright: {1} percent."};
  constexpr std::string_view kOffForms[] = {"Turn off the light in the {0}.", "Light in the {0} off.",
                                            "Please switch the {0} light off.", "No light in the {0}, please.",
                                            "Make the {0} dark."};
  constexpr std::string_view kRooms[] = {"kitchen",  "hall",   "office", "bedroom", "garage",
                                         "bathroom", "cellar", "attic",  "study",   "nursery"};
  const std::string_view room = draw.pick(kRooms);
  const bool on = draw.chance(70);
  const int64_t brightness = on ? draw.between(1, 100) : 0;
  const int64_t watts = draw.between(11, 99);
  ToolCase out;
  out.key = cat("call:light:", room, ":", brightness);
  out.question = on ? fill(draw.pick(kOnForms), {room, cat(brightness)}) : fill(draw.pick(kOffForms), {room});
  out.arguments = object({{"room", text(room)}, {"on", JsonValue::boolean(on)}, {"brightness", integer(brightness)}});
  out.result = cat("{\"ok\": true, \"house_power_watts\": ", watts, "}");
  out.sentence = cat("The light in the ", room, " is ", on ? "on" : "off", ". The house uses ", watts, " watts.");
  out.answer = cat(watts, " watts");
  return out;
}

ToolCase draw_notes(ChatDraw& draw) {
  constexpr std::string_view kForms[] = {"Find up to {1} notes about the {0}.", "Search my notes for {0}, at most {1}.",
                                         "Show me {1} notes on {0}.", "Which notes mention the {0}? Give me {1}.",
                                         "Look for {0} in my notes, {1} results."};
  const std::string_view query = draw.pick(kPlainWords);
  const int64_t limit = draw.between(1, 20);
  const std::string_view found = draw.pick(kObjects);
  ToolCase out;
  out.key = cat("call:notes:", query, ":", limit);
  out.question = fill(draw.pick(kForms), {query, cat(limit)});
  out.arguments = object({{"query", text(query)}, {"limit", integer(limit)}});
  out.result = cat("[\"The ", found, " is near the ", query, ".\"]");
  out.sentence = cat("I found one note: The ", found, " is near the ", query, ".");
  out.answer = found;
  return out;
}

ToolCase draw_order(ChatDraw& draw) {
  constexpr std::string_view kForms[] = {
      "Order {0} {1}s to {2} street {3}.", "I want {0} {1}s, delivered to {2} street {3}.",
      "Please buy {0} {1}s and send them to {2} street {3}.", "Get me {0} {1}s. The address is {2} street {3}.",
      "Send {0} {1}s to {2} street number {3}."};
  const int64_t quantity = draw.between(2, 40);
  const std::string_view item = draw.pick(kObjects);
  const std::string street = capitalized(std::string(draw.pick(kPlainWords)));
  const int64_t number = draw.between(1, 200);
  const int64_t order = draw.between(1000, 9999);
  ToolCase out;
  out.key = cat("call:order:", quantity, ":", item, ":", street, ":", number);
  out.question = fill(draw.pick(kForms), {cat(quantity), item, street, cat(number)});
  out.arguments = object({{"item", text(item)},
                          {"quantity", integer(quantity)},
                          {"address", object({{"street", text(street)}, {"number", integer(number)}})}});
  out.result = cat("{\"order\": ", order, "}");
  out.sentence = cat("Your order ", order, " of ", quantity, " ", item, "s is on its way.");
  out.answer = cat("order ", order);
  return out;
}

ToolCase draw_user(ChatDraw& draw) {
  constexpr std::string_view kForms[] = {"Who is user {0}?", "Look up the user with the id {0}.",
                                         "Which name belongs to user {0}?", "Tell me about user number {0}.",
                                         "Find user {0}."};
  const int64_t id = draw.between(100, 9999);
  const std::string_view name = draw.pick(kNames);
  const std::string_view town = draw.pick(kTowns);
  ToolCase out;
  out.key = cat("call:user:", id);
  out.question = fill(draw.pick(kForms), {cat(id)});
  out.arguments = object({{"id", integer(id)}});
  out.result = cat("{\"name\": \"", name, "\", \"town\": \"", town, "\"}");
  out.sentence = cat("User ", id, " is ", name, " from ", town, ".");
  out.answer = cat("is ", name, " from ", town);
  return out;
}

ToolCase draw_alarm(ChatDraw& draw) {
  constexpr std::string_view kDailyForms[] = {"Wake me at {0} every day.", "Set a daily alarm for {0}.",
                                              "I need an alarm at {0}, each day.", "Alarm at {0}, repeated daily.",
                                              "Please ring at {0} every day."};
  constexpr std::string_view kOnceForms[] = {"Wake me at {0}.", "Set an alarm for {0}, only once.",
                                             "I need a single alarm at {0}.", "Alarm at {0}, please, not repeated.",
                                             "Please ring once at {0}."};
  const int64_t hour = draw.between(0, 23);
  const std::string time = cat(hour, ":", draw.between(10, 59));
  const bool repeat = draw.chance(50);
  const int64_t hours = draw.between(2, 23);
  ToolCase out;
  out.key = cat("call:alarm:", time, ":", repeat);
  out.question = fill(repeat ? draw.pick(kDailyForms) : draw.pick(kOnceForms), {time});
  out.arguments = object({{"time", text(time)}, {"repeat", JsonValue::boolean(repeat)}});
  out.result = cat("rings in ", hours, " hours");
  out.sentence = cat("The alarm is set for ", time, repeat ? " every day" : "", ". It rings in ", hours, " hours.");
  out.answer = cat("in ", hours, " hours");
  return out;
}

struct ToolKind {
  std::string_view name;
  std::string_view purpose;
  std::string_view declaration;  // JSON of the function object
  ToolCase (*draw)(ChatDraw&);
};

constexpr ToolKind kTools[] = {
    {"get_weather", "tell the weather",
     R"({"name":"get_weather","description":"Current weather of a city","parameters":{"type":"object","properties":{"city":{"type":"string"},"unit":{"type":"string","enum":["celsius","fahrenheit"]}},"required":["city"]}})",
     draw_weather},
    {"set_timer", "set a timer",
     R"({"name":"set_timer","description":"Start a timer","parameters":{"type":"object","properties":{"minutes":{"type":"integer"},"label":{"type":"string"}},"required":["minutes","label"]}})",
     draw_timer},
    {"convert_currency", "convert money",
     R"({"name":"convert_currency","description":"Convert an amount of money","parameters":{"type":"object","properties":{"amount":{"type":"number"},"from":{"type":"string"},"to":{"type":"string"}},"required":["amount","from","to"]}})",
     draw_currency},
    {"create_event", "plan events",
     R"({"name":"create_event","description":"Add an event to the calendar","parameters":{"type":"object","properties":{"title":{"type":"string"},"date":{"type":"string"},"guests":{"type":"array","items":{"type":"string"}}},"required":["title","date","guests"]}})",
     draw_event},
    {"send_message", "send messages",
     R"({"name":"send_message","description":"Send a text message","parameters":{"type":"object","properties":{"to":{"type":"string"},"text":{"type":"string"}},"required":["to","text"]}})",
     draw_message},
    {"set_light", "switch lights",
     R"({"name":"set_light","description":"Switch a light and set its brightness in percent","parameters":{"type":"object","properties":{"room":{"type":"string"},"on":{"type":"boolean"},"brightness":{"type":"integer"}},"required":["room","on","brightness"]}})",
     draw_light},
    {"search_notes", "search notes",
     R"({"name":"search_notes","description":"Search the user's notes","parameters":{"type":"object","properties":{"query":{"type":"string"},"limit":{"type":"integer"}},"required":["query","limit"]}})",
     draw_notes},
    {"place_order", "order things",
     R"({"name":"place_order","description":"Order an item","parameters":{"type":"object","properties":{"item":{"type":"string"},"quantity":{"type":"integer"},"address":{"type":"object","properties":{"street":{"type":"string"},"number":{"type":"integer"}}}},"required":["item","quantity","address"]}})",
     draw_order},
    {"lookup_user", "look up users",
     R"({"name":"lookup_user","description":"Find a user by id","parameters":{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}})",
     draw_user},
    {"set_alarm", "set an alarm",
     R"({"name":"set_alarm","description":"Set an alarm clock","parameters":{"type":"object","properties":{"time":{"type":"string"},"repeat":{"type":"boolean"}},"required":["time","repeat"]}})",
     draw_alarm},
};

DrawnTool drawn(const ToolKind& kind) {
  auto function = parse_json(kind.declaration, kind.name);
  TANDEM_CHECK(function.is_ok(), function.status().message());
  return {std::string(kind.name),
          std::string(kind.purpose),
          {std::string(kind.name), object({{"type", text("function")}, {"function", std::move(function).value()}})}};
}

}  // namespace

ToolUse draw_tool_use(ChatDraw& draw) {
  if (draw.chance(35)) return draw_made_tool_use(draw);
  const ToolKind& kind = kTools[draw.below(std::size(kTools))];
  return {drawn(kind), draw.item([&] { return kind.draw(draw); })};
}

DrawnTool draw_tool(ChatDraw& draw) {
  return draw.chance(35) ? draw_made_tool(draw) : drawn(kTools[draw.below(std::size(kTools))]);
}

}  // namespace tandem
