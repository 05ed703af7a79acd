#include "weights/toy_tokenizer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/cat.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kControlBlock = 256;
constexpr int64_t kNumBytes = 256;
constexpr int64_t kMaxRanks = kNumBytes + (1 << 16) + (1 << 24);

constexpr std::string_view kBos = "[BOS]";
constexpr std::string_view kEndOfMessage = "<|end_of_msg|>";
constexpr std::string_view kPad = "[PAD]";
constexpr std::string_view kMediaPad = "<|media_pad|>";

constexpr std::array<ControlName, 16> kK3ControlNames = {{
    {0, kBos, true},
    {1, "[EOS]", true},
    {2, kEndOfMessage, true},
    {3, "<|open|>", false},
    {4, "<|close|>", false},
    {5, "<|sep|>", false},
    {6, "[start_header_id]", true},
    {7, "[end_header_id]", true},
    {9, "[EOT]", true},
    {18, "<|media_begin|>", true},
    {19, "<|media_content|>", true},
    {20, "<|media_end|>", true},
    {21, kMediaPad, true},
    {65, "<osagent_mode>", true},
    {254, "[UNK]", true},
    {255, kPad, true},
}};

// The byte string of a rank: its length, and the bytes as one big-endian number.
std::string rank_bytes(int64_t rank) {
  int64_t length = 1;
  for (int64_t count = kNumBytes; rank >= count; count *= kNumBytes) {
    rank -= count;
    ++length;
  }
  std::string bytes;
  for (int64_t i = length - 1; i >= 0; --i) bytes += static_cast<char>(rank >> (8 * i) & 0xff);
  return bytes;
}

void append_base64(std::string& out, std::string_view bytes) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t begin = 0; begin < bytes.size(); begin += 3) {
    uint32_t word = 0;
    for (size_t i = 0; i < 3; ++i) {
      word = word << 8 | (begin + i < bytes.size() ? static_cast<unsigned char>(bytes[begin + i]) : 0u);
    }
    const size_t digits = std::min<size_t>(3, bytes.size() - begin) + 1;
    for (size_t i = 0; i < 4; ++i) out += i < digits ? kAlphabet[word >> (18 - 6 * i) & 63] : '=';
  }
}

struct ConfigId {
  std::string_view field;
  std::string_view control_name;
  bool k3_only = false;
};
constexpr std::array<ConfigId, 4> kConfigIds = {{
    {"bos_token_id", kBos, false},
    {"eos_token_id", kEndOfMessage, false},
    {"pad_token_id", kPad, false},
    {"media_placeholder_token_id", kMediaPad, true},
}};

bool names_outside_token(const Json& value, int64_t vocab_size) {
  if (value.is_number_integer()) return value.get<int64_t>() >= vocab_size || value.get<int64_t>() < 0;
  if (!value.is_array()) return false;
  return std::ranges::any_of(value, [&](const Json& item) { return names_outside_token(item, vocab_size); });
}

// `always`: state the id even where the file did not.
void set_token_ids(Json& object, int64_t vocab_size, const std::optional<ToyTokenizer>& tokenizer, bool always,
                   bool is_k3) {
  for (const ConfigId& item : kConfigIds) {
    const std::string field(item.field);
    const bool stated = object.contains(field);
    if (!tokenizer) {
      if (stated && names_outside_token(object[field], vocab_size)) object.erase(field);
      continue;
    }
    if (!stated && (!always || (item.k3_only && !is_k3))) continue;
    const auto id = tokenizer->id_of(item.control_name);
    if (id) {
      object[field] = *id;
    } else {
      object.erase(field);
    }
  }
}

}  // namespace

std::span<const ControlName> k3_control_names() { return kK3ControlNames; }

std::optional<ToyTokenizer> make_toy_tokenizer(int64_t vocab_size) {
  if (vocab_size < kNumBytes || vocab_size - kControlBlock > kMaxRanks) return std::nullopt;
  ToyTokenizer tokenizer;
  tokenizer.vocab_size = vocab_size;
  const int64_t block = std::min(kControlBlock, vocab_size - kNumBytes);
  tokenizer.num_ranks = vocab_size - block;
  int64_t next = 0;
  for (const ControlName& name : kK3ControlNames) {
    const int64_t offset = block == kControlBlock ? name.offset : next++;
    if (offset < block) tokenizer.control.push_back({tokenizer.num_ranks + offset, name.text, name.special});
  }
  return tokenizer;
}

std::optional<int64_t> ToyTokenizer::id_of(std::string_view control_name) const {
  const auto found = std::ranges::find(control, control_name, &NamedId::text);
  if (found == control.end()) return std::nullopt;
  return found->id;
}

std::string ToyTokenizer::rank_file() const {
  std::string text;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    append_base64(text, rank_bytes(rank));
    text += cat(' ', rank, '\n');
  }
  return text;
}

std::string ToyTokenizer::tokenizer_config_json() const {
  Json decoder = Json::object();
  for (const NamedId& named : control) {
    decoder[cat(named.id)] = {{"content", named.text}, {"lstrip", false},      {"normalized", false},
                              {"rstrip", false},       {"single_word", false}, {"special", named.special}};
  }
  Json config = Json::object();
  config["added_tokens_decoder"] = std::move(decoder);
  const std::pair<const char*, std::string_view> named_roles[] = {
      {"bos_token", kBos}, {"eos_token", kEndOfMessage}, {"unk_token", "[UNK]"}, {"pad_token", kPad}};
  for (const auto& [role, name] : named_roles) {
    if (id_of(name)) config[role] = name;
  }
  config["tokenizer_class"] = "TikTokenTokenizer";
  return config.dump(2) + "\n";
}

std::string ToyTokenizer::generation_config_json() const {
  Json config = Json::object();
  for (const ConfigId& item : kConfigIds) {
    if (item.k3_only) continue;
    if (const auto id = id_of(item.control_name)) config[std::string(item.field)] = *id;
  }
  return config.dump(2) + "\n";
}

Result<std::string> config_with_token_ids(std::string_view config_json, int64_t vocab_size,
                                          const std::optional<ToyTokenizer>& tokenizer) {
  Json config = Json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return Status::invalid("the configuration is not a JSON object");
  const auto text_config = config.find("text_config");
  const bool is_k3 = text_config != config.end() && text_config->is_object();
  set_token_ids(config, vocab_size, tokenizer, /*always=*/true, is_k3);
  if (is_k3) set_token_ids(config["text_config"], vocab_size, tokenizer, /*always=*/false, is_k3);
  return config.dump(2) + "\n";
}

}  // namespace tandem
