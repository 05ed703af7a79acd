#include "corpus/corpus_recipe.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/cat.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

// Reads the members of one object. The first fault stays; whatever is asked for after it changes nothing.
class Fields {
 public:
  Fields(const Json& json, std::string where, Status& status) : json_(json), where_(std::move(where)), status_(status) {
    if (!json_.is_object()) fail("", cat("expected an object, found ", json_.type_name()));
  }

  void read(const char* key, std::string& out) {
    if (const Json* value = find(key, &Json::is_string, "a string")) out = value->get<std::string>();
  }
  void read(const char* key, bool& out) {
    if (const Json* value = find(key, &Json::is_boolean, "true or false")) out = value->get<bool>();
  }
  void read(const char* key, double& out, double low, double high) {
    const Json* value = find(key, &Json::is_number, "a number");
    if (value == nullptr) return;
    out = value->get<double>();
    if (!(out >= low && out <= high)) fail(key, cat("expected ", low, " to ", high, ", found ", value->dump()));
  }
  void read(const char* key, int64_t& out, int64_t low, int64_t high) {
    if (const Json* value = find(key, &Json::is_number, "a number")) out = whole(key, *value, low, high).value_or(out);
  }
  void read(const char* key, uint64_t& out, int64_t low) {
    auto value = static_cast<int64_t>(out);
    read(key, value, low, INT64_MAX);
    out = static_cast<uint64_t>(value);
  }
  void read(const char* key, std::vector<std::string>& out) {
    const Json* list = find(key, &Json::is_array, "a list of strings");
    if (list == nullptr) return;
    for (const Json& item : *list) {
      if (!item.is_string()) return fail(key, cat("expected strings, found ", item.dump()));
      out.push_back(item.get<std::string>());
    }
  }
  void read_range(const char* key, int64_t& from, int64_t& to, int64_t low, int64_t high) {
    const Json* list = find(key, &Json::is_array, "[from, to]");
    if (list == nullptr) return;
    if (list->size() != 2) return fail(key, cat("expected [from, to], found ", list->dump()));
    from = whole(key, (*list)[0], low, high).value_or(from);
    to = whole(key, (*list)[1], from, high).value_or(to);
  }
  const Json* object(const char* key) { return find(key, &Json::is_object, "an object"); }
  const Json* list(const char* key) { return find(key, &Json::is_array, "a list"); }
  bool has(const char* key) const { return json_.is_object() && json_.contains(key); }
  std::string place(std::string_view key) const { return where_.empty() ? std::string(key) : cat(where_, ".", key); }

  void fail(std::string_view key, std::string message) {
    if (!status_.is_ok()) return;
    const std::string at = key.empty() ? where_ : place(key);
    status_ = Status::invalid(at.empty() ? message : cat(at, ": ", message));
  }

  // Call it last: a key that nobody asked for is refused.
  void finish() {
    if (!json_.is_object()) return;
    for (const auto& [key, value] : json_.items()) {
      if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
        std::string list;
        for (const std::string& name : known_) list += cat(list.empty() ? "" : ", ", name);
        fail(key, cat("unknown key; known are ", list));
      }
    }
  }

 private:
  const Json* find(const char* key, bool (Json::*is_right)() const noexcept, const char* expected) {
    known_.emplace_back(key);
    if (!json_.is_object()) return nullptr;
    const auto found = json_.find(key);
    if (found == json_.end()) return nullptr;
    if (!((*found).*is_right)()) {
      fail(key, cat("expected ", expected, ", found ", found->dump()));
      return nullptr;
    }
    return &*found;
  }

  std::optional<int64_t> whole(const char* key, const Json& value, int64_t low, int64_t high) {
    const double number = value.is_number() ? value.get<double>() : 0.5;  // 1e6 is a whole number too
    const bool in_range = number >= static_cast<double>(low) && number <= static_cast<double>(high) && number < 0x1p63;
    if (in_range && number == std::floor(number)) {
      return value.is_number_integer() ? value.get<int64_t>() : static_cast<int64_t>(number);
    }
    fail(key, cat("expected a whole number of ", low, " to ", high, ", found ", value.dump()));
    return std::nullopt;
  }

  const Json& json_;
  std::string where_;
  Status& status_;
  std::vector<std::string> known_;
};

constexpr int64_t kMaxTokens = int64_t{1} << 40;

// Of what is written under this name.
void check_file_name(Fields& fields, const char* key, const std::string& name) {
  if (name.empty()) fields.fail(key, "expected a name, found none");
  if (name.find('/') != std::string::npos || name.starts_with('.')) {
    fields.fail(key, cat("expected a file name without '/', that does not begin with '.', found \"", name, '"'));
  }
}

// Two of one name would write over each other's files.
template <class List, class Name>
void refuse_repeated(Fields& fields, const char* key, const List& list, Name name_of) {
  for (size_t i = 0; i < list.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (name_of(list[i]) == name_of(list[j])) {
        fields.fail(key, cat("expected different names, found \"", name_of(list[i]), "\" twice"));
      }
    }
  }
}

SourceRecipe read_source(const Json& json, const std::string& where, Status& status) {
  SourceRecipe out;
  Fields fields(json, where, status);
  std::string format = "text";
  fields.read("package", out.source.package);
  fields.read("version", out.source.version);
  fields.read("version_file", out.version_file);
  fields.read("license", out.source.license);
  fields.read("origin", out.source.origin);
  fields.read("files", out.files);
  fields.read("format", format);
  fields.read("prose_only", out.prose_only);
  fields.read("entries_per_document", out.entries_per_document, 1, 1000000);
  fields.read("max_bytes", out.max_bytes, 1, INT64_MAX);
  check_file_name(fields, "package", out.source.package);
  if (out.source.license.empty()) fields.fail("license", "expected a license, found none");
  if (out.files.empty()) fields.fail("files", "expected patterns, found none");
  if (const auto known = text_format_of(format)) {
    out.format = *known;
  } else {
    fields.fail("format", cat("expected text, html, dictd or wordnet, found \"", format, "\""));
  }
  fields.finish();
  return out;
}

void read_shares(const Json& json, const std::string& where, ChatSetRecipe& out, Status& status) {
  out.shares.fill(0);
  Fields fields(json, where, status);
  int64_t total = 0;
  for (int family = 0; family < kNumChatFamilies; ++family) {
    int64_t share = 0;
    fields.read(std::string(chat_family_name(static_cast<ChatFamily>(family))).c_str(), share, 0, 1000000);
    out.shares[static_cast<size_t>(family)] = static_cast<int>(share);
    total += share;
  }
  fields.finish();
  if (total == 0) fields.fail("", "expected a share above 0, found none");
}

ChatSetRecipe read_chat_set(const Json& json, const std::string& where, Status& status) {
  ChatSetRecipe out;
  Fields fields(json, where, status);
  std::string split = "train";
  std::string loss = "assistant";
  fields.read("name", out.name);
  fields.read("split", split);
  fields.read("seed", out.seed, 0);
  fields.read("tokens", out.tokens, 1, kMaxTokens);
  fields.read("shard_tokens", out.shard_tokens, 1, kMaxTokens);
  fields.read("max_document_tokens", out.max_document_tokens, 16, INT32_MAX);
  fields.read_range("gap", out.min_gap_tokens, out.max_gap_tokens, 0, INT32_MAX);
  fields.read_range("num_questions", out.min_questions, out.max_questions, 1, 12);
  fields.read("loss", loss);
  if (const Json* shares = fields.object("shares")) read_shares(*shares, fields.place("shares"), out, status);
  check_file_name(fields, "name", out.name);
  if (split != "train" && split != "test") fields.fail("split", cat("expected train or test, found \"", split, "\""));
  if (loss != "assistant" && loss != "all") fields.fail("loss", cat("expected assistant or all, found \"", loss, "\""));
  out.split = split == "test" ? ChatSplit::kTest : ChatSplit::kTrain;
  out.all_tokens = loss == "all";
  fields.finish();
  return out;
}

}  // namespace

Result<CorpusRecipe> parse_corpus_recipe(std::string_view text, const std::string& origin) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return Status::invalid(cat(origin, ": expected JSON"));
  CorpusRecipe out;
  Status status = Status::ok();
  Fields fields(json, "", status);
  if (const Json* sources = fields.list("sources")) {
    for (size_t i = 0; i < sources->size(); ++i) {
      out.sources.push_back(read_source((*sources)[i], cat("sources[", i, "]"), status));
    }
  }
  if (const Json* clean = fields.object("clean")) {
    Fields rules(*clean, "clean", status);
    rules.read("collapse_spaces", out.clean.cleaner.collapse_spaces);
    rules.read("min_document_bytes", out.clean.min_document_bytes, 0, INT32_MAX);
    rules.read("min_letter_fraction", out.clean.min_letter_fraction, 0, 1);
    rules.read("min_paragraph_bytes", out.clean.min_paragraph_bytes, 0, INT32_MAX);
    rules.finish();
  }
  fields.read("held_out_one_of", out.held_out_one_of, 2);
  if (const Json* sample = fields.object("chat_sample")) {
    Fields rules(*sample, "chat_sample", status);
    rules.read("examples", out.sample_examples, 0, 10000000);
    rules.read("seed", out.sample_seed, 0);
    rules.finish();
  }
  fields.read("prose_shard_tokens", out.prose_shard_tokens, 1, kMaxTokens);
  if (const Json* chats = fields.list("chats")) {
    for (size_t i = 0; i < chats->size(); ++i) {
      out.chats.push_back(read_chat_set((*chats)[i], cat("chats[", i, "]"), status));
    }
  }
  if (out.sources.empty()) fields.fail("sources", "expected one or more, found none");
  refuse_repeated(fields, "sources", out.sources, [](const SourceRecipe& source) { return source.source.package; });
  refuse_repeated(fields, "chats", out.chats, [](const ChatSetRecipe& chats) { return chats.name; });
  fields.finish();
  if (!status.is_ok()) return Status::invalid(cat(origin, ": ", status.message()));
  return out;
}

}  // namespace tandem
