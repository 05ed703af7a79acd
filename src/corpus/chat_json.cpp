// corpus/chat_json.cpp: records given back as raw JSON, with response_format json_object or json_schema.
#include "base/cat.h"
#include "corpus/chat_family.h"
#include "text/json_format.h"

namespace tandem {
namespace {

struct Record {
  std::string key;
  std::string sentence;
  JsonValue value;
};

struct Field {
  std::string_view name;
  JsonValue value;
};

JsonValue text(std::string_view value) { return JsonValue::string(std::string(value)); }
JsonValue integer(int64_t value) { return JsonValue::number(cat(value)); }

JsonValue record_of(std::initializer_list<Field> fields) {
  JsonValue out = JsonValue::object();
  for (const Field& field : fields) out.mutable_members().emplace_back(field.name, field.value);
  return out;
}

Record draw_person(ChatDraw& draw) {
  constexpr std::string_view kForms[] = {"{0} is {1} years old and lives in {2}.", "{0}, {1} years old, is from {2}.",
                                         "In {2} lives {0}, who is {1} years old.", "{0} from {2} is {1}.",
                                         "This is {0}. Age: {1}. City: {2}."};
  const std::string_view name = draw.pick(kNames);
  const int64_t age = draw.between(5, 98);
  const std::string_view town = draw.pick(kTowns);
  return {cat("json:person:", name, ":", age, ":", town), fill(draw.pick(kForms), {name, cat(age), town}),
          record_of({{"name", text(name)}, {"age", integer(age)}, {"city", text(town)}})};
}

Record draw_purchase(ChatDraw& draw) {
  constexpr std::string_view kForms[] = {
      "{0} {1}s at {2} each, paid: {3}.", "We need {0} {1}s for {2} each. Paid: {3}.",
      "Item: {1}. Number: {0}. Price: {2}. Paid: {3}.", "Someone bought {0} {1}s, {2} each (paid: {3}).",
      "The order is {0} {1}s, one costs {2}, paid: {3}."};
  const std::string_view item = draw.pick(kObjects);
  const int64_t quantity = draw.between(2, 60);
  const std::string price = cat(draw.between(1, 80), ".5");
  const bool paid = draw.chance(50);
  return {cat("json:purchase:", item, ":", quantity, ":", price, ":", paid),
          fill(draw.pick(kForms), {cat(quantity), item, price, paid ? "yes" : "no"}),
          record_of({{"item", text(item)},
                     {"quantity", integer(quantity)},
                     {"price", JsonValue::number(price)},
                     {"paid", JsonValue::boolean(paid)}})};
}

Record draw_meeting(ChatDraw& draw) {
  constexpr std::string_view kForms[] = {"{0} and {1} meet on {2} in {3}.", "On {2}, {0} and {1} meet in {3}.",
                                         "In {3} there is a meeting of {0} and {1} on {2}.",
                                         "Meeting in {3}, {2}, with {0} and {1}.",
                                         "{2}, {3}: {0} and {1} sit together."};
  const std::string_view first = draw.pick(kNames);
  std::string_view second = draw.pick(kNames);
  while (second == first) second = draw.pick(kNames);
  const std::string_view day = draw.pick(kDays);
  const std::string_view town = draw.pick(kTowns);
  JsonValue guests = JsonValue::array();
  guests.mutable_items() = {text(first), text(second)};
  return {cat("json:meeting:", first, ":", second, ":", day, ":", town),
          fill(draw.pick(kForms), {first, second, day, town}),
          record_of({{"guests", guests}, {"day", text(day)}, {"city", text(town)}})};
}

// Any of many fields, in any order.
Record draw_fields(ChatDraw& draw) {
  struct Choice {
    std::string_view name;
    JsonValue (*value)(ChatDraw&);
  };
  constexpr Choice kChoices[] = {
      {"name", [](ChatDraw& d) { return text(d.pick(kNames)); }},
      {"friend", [](ChatDraw& d) { return text(d.pick(kNames)); }},
      {"town", [](ChatDraw& d) { return text(d.pick(kTowns)); }},
      {"job", [](ChatDraw& d) { return text(d.pick(kJobs)); }},
      {"animal", [](ChatDraw& d) { return text(d.pick(kAnimals)); }},
      {"colour", [](ChatDraw& d) { return text(d.pick(kColours)); }},
      {"food", [](ChatDraw& d) { return text(d.pick(kFoods)); }},
      {"day", [](ChatDraw& d) { return text(d.pick(kDays)); }},
      {"date", [](ChatDraw& d) { return text(draw_date(d)); }},
      {"room", [](ChatDraw& d) { return text(d.pick(kRooms)); }},
      {"age", [](ChatDraw& d) { return integer(d.between(1, 99)); }},
      {"count", [](ChatDraw& d) { return integer(d.between(1, 999)); }},
      {"price", [](ChatDraw& d) { return JsonValue::number(cat(d.between(1, 80), ".5")); }},
      {"code", [](ChatDraw& d) { return integer(d.between(1000, 9999)); }},
  };
  std::vector<size_t> order(std::size(kChoices));
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const size_t count = 2 + draw.below(4);
  Record out{"json:fields", "", JsonValue::object()};
  for (size_t i = 0; i < count; ++i) {
    std::swap(order[i], order[i + draw.below(order.size() - i)]);
    const Choice& choice = kChoices[order[i]];
    JsonValue value = choice.value(draw);
    const std::string said = value.is_string() ? std::string(value.text()) : format_json_spaced(value);
    out.key += cat(":", choice.name, "=", said);
    out.sentence += cat(out.sentence.empty() ? "" : " ", "The ", choice.name, " is ", said, ".");
    out.value.mutable_members().emplace_back(choice.name, std::move(value));
  }
  return out;
}

std::string_view schema_type(const JsonValue& value) {
  if (value.kind() != JsonKind::kNumber) return json_kind_name(value.kind());
  return value.text().find('.') == std::string::npos ? "integer" : "number";
}

JsonValue schema_of(const JsonValue& record) {
  JsonValue properties = JsonValue::object();
  JsonValue required = JsonValue::array();
  for (const auto& [name, value] : record.members()) {
    JsonValue property = record_of({{"type", text(schema_type(value))}});
    if (value.is_array()) property.mutable_members().emplace_back("items", record_of({{"type", text("string")}}));
    properties.mutable_members().emplace_back(name, std::move(property));
    required.mutable_items().push_back(text(name));
  }
  return record_of({{"type", text("object")}, {"properties", properties}, {"required", required}});
}

}  // namespace

void make_json(ChatContext& context, ChatExample& example) {
  ChatDraw& draw = context.draw;
  constexpr Record (*kRecords[])(ChatDraw&) = {draw_person, draw_purchase, draw_meeting, draw_fields, draw_fields};
  const auto make = kRecords[draw.below(std::size(kRecords))];
  const Record record = draw.item([&] { return make(draw); });
  std::string names;
  for (const auto& member : record.value.members()) names += cat(names.empty() ? "" : ", ", member.first);
  constexpr std::string_view kForms[] = {"Give me this as JSON with {0}: {1}",
                                         "{1} Write it as JSON with the keys {0}.", "Extract {0} from this text: {1}",
                                         "{1}\nReturn {0}.", "Turn this sentence into JSON ({0}): {1}"};
  example.request.messages.push_back(user_message(fill(draw.pick(kForms), {names, record.sentence})));
  if (draw.chance(50)) {
    example.request.response_format = {ResponseFormat::Kind::kJsonSchema, schema_of(record.value)};
  } else {
    example.request.response_format.kind = ResponseFormat::Kind::kJsonObject;
  }
  example.answer = format_json_spaced(record.value);
  const std::string high = cat("The keys are ", names, ". I take the values from the text.");
  example.reply = assistant_message(context.think("I write the JSON.", high, cat(high, " No other text is allowed.")),
                                    example.answer);
}

}  // namespace tandem
