#include "server/legacy_logprobs.h"

#include <algorithm>

#include "base/cat.h"
#include "base/utf8.h"
#include "server/logprob_entries.h"
#include "text/reply_json.h"

namespace tandem {
namespace {

std::string quoted_token(const Tokenizer& tokenizer, TokenId id) {
  if (!tokenizer.contains(id)) return "\"\"";
  return cat('"', json_escaped(replace_invalid_utf8(tokenizer.token_bytes(id))), '"');
}

}  // namespace

void LegacyLogprobs::token(const TokenOutput& output, std::string_view text) {
  Entry& entry = entries_.emplace_back();
  entry.token = quoted_token(*tokenizer_, output.token);
  entry.logprob = output.logprob ? cat(finite_logprob(*output.logprob)) : "null";
  entry.offset = num_characters_;
  // A prompt's first token has no alternatives.
  entry.top = output.logprob ? "{" : "null";
  if (output.logprob) {
    std::vector<std::string> seen;
    for (size_t i = 0; i < std::min(num_alternatives_, output.top.size()); ++i) {
      // Two tokens may read alike; an object has each key once, and the better one comes first.
      std::string key = quoted_token(*tokenizer_, output.top[i].token);
      if (std::find(seen.begin(), seen.end(), key) != seen.end()) continue;
      entry.top += cat(seen.empty() ? "" : ",", key, ":", finite_logprob(output.top[i].logprob));
      seen.push_back(std::move(key));
    }
    entry.top += "}";
  }
  for (const char c : text) num_characters_ += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
}

std::string LegacyLogprobs::take() {
  std::string tokens;
  std::string logprobs;
  std::string tops;
  std::string offsets;
  for (const Entry& entry : entries_) {
    const char* comma = tokens.empty() ? "" : ",";
    tokens += cat(comma, entry.token);
    logprobs += cat(comma, entry.logprob);
    tops += cat(comma, entry.top);
    offsets += cat(comma, entry.offset);
  }
  entries_.clear();
  return cat(R"({"tokens":[)", tokens, R"(],"token_logprobs":[)", logprobs, R"(],"top_logprobs":[)", tops,
             R"(],"text_offset":[)", offsets, "]}");
}

}  // namespace tandem
