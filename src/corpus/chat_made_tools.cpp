// corpus/chat_made_tools.cpp: tools made up on the spot, so that a model must read the declaration: a name of a verb
// and a noun, parameters of every JSON type, and a request that says the values in everyday words.
#include <algorithm>

#include "base/cat.h"
#include "corpus/chat_family.h"
#include "corpus/chat_tool_cases.h"

namespace tandem {
namespace {

constexpr std::string_view kVerbs[] = {"get",  "find",  "set",    "list",   "start",  "stop", "check", "update",
                                       "open", "close", "create", "remove", "rename", "move", "book",  "count"};
constexpr std::string_view kNouns[] = {
    "river level", "parcel",       "invoice",   "playlist",     "ticket", "camera",  "garden pump", "door lock",
    "recipe",      "library book", "train",     "parking spot", "sensor", "flight",  "printer",     "bus stop",
    "heater",      "window blind", "shelf",     "photo album",  "task",   "contact", "report",      "robot",
    "oven",        "bank card",    "fish tank", "ferry",        "room",   "song",    "file",        "meter"};

JsonValue object(std::initializer_list<JsonValue::Member> members) {
  JsonValue out = JsonValue::object();
  out.mutable_members().assign(members.begin(), members.end());
  return out;
}
JsonValue text(std::string_view value) { return JsonValue::string(std::string(value)); }
JsonValue number(std::string value) { return JsonValue::number(std::move(value)); }
JsonValue array_of(std::span<const std::string_view> words) {
  JsonValue out = JsonValue::array();
  for (const std::string_view word : words) out.mutable_items().push_back(text(word));
  return out;
}
JsonValue typed(std::string_view type) { return object({{"type", text(type)}}); }

struct Value {
  JsonValue json;
  std::string said;  // in the request
};

std::string plain_words(ChatDraw& draw, int64_t count) {
  std::string out;
  for (int64_t i = 0; i < count; ++i) out += cat(out.empty() ? "" : " ", draw.pick(kPlainWords));
  return out;
}

Value string_value(std::string value) { return {text(value), std::move(value)}; }
Value quoted_value(std::string value) { return {text(value), cat("\"", value, "\"")}; }

struct Parameter {
  std::string_view name;
  JsonValue (*schema)();
  Value (*value)(ChatDraw&);
};

constexpr std::string_view kModes[] = {"slow", "normal", "fast", "quiet"};

const Parameter kParameters[] = {
    {"person", [] { return typed("string"); }, [](ChatDraw& d) { return string_value(std::string(d.pick(kNames))); }},
    {"city", [] { return typed("string"); }, [](ChatDraw& d) { return string_value(std::string(d.pick(kTowns))); }},
    {"location", [] { return typed("string"); }, [](ChatDraw& d) { return string_value(std::string(d.pick(kTowns))); }},
    {"item", [] { return typed("string"); }, [](ChatDraw& d) { return string_value(std::string(d.pick(kObjects))); }},
    {"title", [] { return typed("string"); },
     [](ChatDraw& d) { return quoted_value(plain_words(d, d.between(2, 5))); }},
    {"note", [] { return typed("string"); }, [](ChatDraw& d) { return quoted_value(filler_sentence(d)); }},
    {"code", [] { return typed("string"); },
     [](ChatDraw& d) {
       constexpr std::string_view kLetters = "ABCDEFGHJKLMNPQRSTUVWXYZ";
       const std::string_view first = kLetters.substr(d.below(kLetters.size()), 1);
       return string_value(cat(first, kLetters.substr(d.below(kLetters.size()), 1), "-", d.between(100, 9999)));
     }},
    {"date", [] { return typed("string"); }, [](ChatDraw& d) { return string_value(draw_date(d)); }},
    {"day",
     [] {
       return object({{"type", text("string")}, {"enum", array_of(kDays)}});
     },
     [](ChatDraw& d) { return string_value(std::string(d.pick(kDays))); }},
    {"mode",
     [] {
       return object({{"type", text("string")}, {"enum", array_of(kModes)}});
     },
     [](ChatDraw& d) { return string_value(std::string(d.pick(kModes))); }},
    {"count", [] { return typed("integer"); },
     [](ChatDraw& d) {
       const std::string value = cat(d.between(1, 99));
       return Value{number(value), value};
     }},
    {"id", [] { return typed("integer"); },
     [](ChatDraw& d) {
       const std::string value = cat(d.between(100, 99999));
       return Value{number(value), value};
     }},
    {"level", [] { return typed("number"); },
     [](ChatDraw& d) {
       const int64_t whole = d.between(0, 99);
       const std::string value = cat(whole, ".", d.between(1, 9));
       return Value{number(value), value};
     }},
    {"price", [] { return typed("number"); },
     [](ChatDraw& d) {
       const int64_t whole = d.between(1, 400);
       const std::string value = cat(whole, ".", d.between(0, 9), "5");
       return Value{number(value), value};
     }},
    {"urgent", [] { return typed("boolean"); },
     [](ChatDraw& d) {
       const bool value = d.chance(50);
       return Value{JsonValue::boolean(value), value ? "true" : "false"};
     }},
    {"enabled", [] { return typed("boolean"); },
     [](ChatDraw& d) {
       const bool value = d.chance(50);
       return Value{JsonValue::boolean(value), value ? "true" : "false"};
     }},
    {"tags",
     [] {
       return object({{"type", text("array")}, {"items", typed("string")}});
     },
     [](ChatDraw& d) {
       std::vector<std::string_view> words;
       for (int64_t n = d.between(1, 3); n > 0; --n) words.push_back(d.pick(kPlainWords));
       std::string said;
       for (const std::string_view word : words) said += cat(said.empty() ? "" : " and ", word);
       return Value{array_of(words), said};
     }},
    {"numbers",
     [] {
       return object({{"type", text("array")}, {"items", typed("integer")}});
     },
     [](ChatDraw& d) {
       JsonValue list = JsonValue::array();
       std::string said;
       for (int64_t n = d.between(1, 4); n > 0; --n) {
         const std::string value = cat(d.between(1, 99));
         list.mutable_items().push_back(number(value));
         said += cat(said.empty() ? "" : " and ", value);
       }
       return Value{list, said};
     }},
    {"size",
     [] {
       return object({{"type", text("object")},
                      {"properties", object({{"height", typed("integer")}, {"width", typed("integer")}})}});
     },
     [](ChatDraw& d) {
       const std::string height = cat(d.between(1, 99));
       const std::string width = cat(d.between(1, 99));
       return Value{object({{"height", number(height)}, {"width", number(width)}}),
                    cat("height ", height, " and width ", width)};
     }},
};

// A tool and the parameters behind it, by name: as the declaration shows them.
struct MadeTool {
  DrawnTool drawn;
  std::string noun;
  std::vector<const Parameter*> parameters;
  size_t left_out;  // index of the parameter that need not be given; parameters.size(): none
};

MadeTool make_tool(ChatDraw& draw) {
  MadeTool out;
  const std::string_view verb = draw.pick(kVerbs);
  out.noun = draw.pick(kNouns);
  std::string name = cat(verb, "_", out.noun);
  std::ranges::replace(name, ' ', '_');
  std::vector<const Parameter*> all;
  for (const Parameter& parameter : kParameters) all.push_back(&parameter);
  const size_t count = 1 + draw.below(4);
  for (size_t i = 0; i < count; ++i) std::swap(all[i], all[i + draw.below(all.size() - i)]);
  out.parameters.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
  std::ranges::sort(out.parameters, {}, [](const Parameter* parameter) { return parameter->name; });
  out.left_out = count > 1 && draw.chance(25) ? draw.below(count) : count;
  JsonValue properties = JsonValue::object();
  JsonValue required = JsonValue::array();
  for (size_t i = 0; i < count; ++i) {
    properties.mutable_members().emplace_back(out.parameters[i]->name, out.parameters[i]->schema());
    if (i != out.left_out) required.mutable_items().push_back(text(out.parameters[i]->name));
  }
  out.drawn.name = name;
  out.drawn.purpose = cat(verb, " the ", out.noun);
  JsonValue function = object(
      {{"name", text(name)},
       {"description", text(capitalized(cat(verb, " the ", out.noun)))},
       {"parameters",
        object({{"type", text("object")}, {"properties", std::move(properties)}, {"required", std::move(required)}})}});
  out.drawn.tool = {name, object({{"type", text("function")}, {"function", std::move(function)}})};
  return out;
}

void draw_result(ChatDraw& draw, const MadeTool& tool, ToolCase& out) {
  const std::string noun = tool.noun;
  switch (draw.below(6)) {
    case 0: {
      const std::string id = cat(draw.between(100, 99999));
      out.result = cat("{\"status\": \"done\", \"id\": ", id, "}");
      out.sentence = cat("Done. The id is ", id, ".");
      out.answer = cat("id is ", id);
      return;
    }
    case 1: {
      const int64_t whole = draw.between(0, 99);
      const std::string value = cat(whole, ".", draw.between(1, 9));
      out.result = cat("{\"value\": ", value, "}");
      out.sentence = cat("The value for the ", noun, " is ", value, ".");
      out.answer = cat("is ", value);
      return;
    }
    case 2: {
      const std::string_view place = draw.pick(kTowns);
      out.result = cat("{\"place\": \"", place, "\"}");
      out.sentence = cat("The ", noun, " is in ", place, ".");
      out.answer = cat("is in ", place);
      return;
    }
    case 3: {
      const std::string_view person = draw.pick(kNames);
      const std::string date = draw_date(draw);
      out.result = cat("{\"owner\": \"", person, "\", \"date\": \"", date, "\"}");
      out.sentence = cat("The ", noun, " belongs to ", person, " since ", date, ".");
      out.answer = cat("belongs to ", person, " since ", date);
      return;
    }
    case 4: {
      constexpr std::string_view kFaults[] = {"not found", "not allowed", "no connection", "already done",
                                              "out of range"};
      const std::string_view fault = draw.pick(kFaults);
      out.result = cat("{\"error\": \"", fault, "\"}");
      out.sentence = cat("That did not work: ", fault, ".");
      out.answer = cat("did not work: ", fault);
      return;
    }
    default: {
      const std::string words = plain_words(draw, draw.between(1, 3));
      out.result = cat("ok, ", words);
      out.sentence = cat("The answer for the ", noun, " is: ", words, ".");
      out.answer = cat("is: ", words);
    }
  }
}

}  // namespace

DrawnTool draw_made_tool(ChatDraw& draw) { return make_tool(draw).drawn; }

ToolUse draw_made_tool_use(ChatDraw& draw) {
  struct Drawn {
    std::string key;
    ToolUse use;
  };
  Drawn drawn = draw.item([&] {
    MadeTool tool = make_tool(draw);
    ToolCase out;
    out.arguments = JsonValue::object();
    std::vector<std::string> said;
    out.key = cat("call:made:", tool.drawn.name);
    for (size_t i = 0; i < tool.parameters.size(); ++i) {
      if (i == tool.left_out) continue;
      const Parameter& parameter = *tool.parameters[i];
      Value value = parameter.value(draw);
      out.key += cat(":", parameter.name, "=", value.said);
      said.push_back(cat(parameter.name, " ", value.said));
      out.arguments.mutable_members().emplace_back(parameter.name, std::move(value.json));
    }
    for (size_t i = said.size(); i > 1; --i) std::swap(said[i - 1], said[draw.below(i)]);
    std::string list;
    for (size_t i = 0; i < said.size(); ++i) {
      list += cat(i == 0 ? "" : i + 1 == said.size() ? " and " : ", ", said[i]);
    }
    constexpr std::string_view kForms[] = {
        "Please {0} with {1}.",  "{2} with {1}.", "I want to {0}: {1}.", "{2}, {1}.",
        "Can you {0} with {1}?", "{2}. {1}.",     "Call {3} with {1}.",  "Use {3}: {1}."};
    const std::string& purpose = tool.drawn.purpose;
    out.question = fill(draw.pick(kForms), {purpose, list, capitalized(purpose), tool.drawn.name});
    draw_result(draw, tool, out);
    std::string key = out.key;
    return Drawn{std::move(key), {std::move(tool.drawn), std::move(out)}};
  });
  return std::move(drawn.use);
}

}  // namespace tandem
