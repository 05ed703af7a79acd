// server/logprob_entries.h: the logprobs of a chat reply: one entry for each piece of its content.
//
//   A token that is no whole characters is joined with those that complete it: the entry's text is valid UTF-8, its
//   logprob the sum, its alternatives those of its first token. Entries belong to tokens of the content channel only.
//   Law: the entries' texts, joined, are the content, but for what a stop string cut inside the last one.
//   One object serves one reply, on one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/service.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"

namespace tandem {

// {"token":…,"logprob":…,"bytes":[…]} with `,"top_logprobs":[…]` when `top` is given. -infinity is -9999.
std::string logprob_entry_json(std::string_view text, std::string_view bytes, double logprob);
std::string top_logprobs_json(const Tokenizer& tokenizer, const std::vector<TokenLogprob>& top, size_t wanted);
double finite_logprob(double logprob);

class LogprobEntries {
 public:
  LogprobEntries(const Tokenizer& tokenizer, int32_t num_alternatives)
      : tokenizer_(tokenizer), decoder_(tokenizer), num_alternatives_(static_cast<size_t>(num_alternatives)) {}

  // Each token of the reply in order, then the content it made certain.
  void token(const TokenOutput& output);
  void end();  // no token follows
  void content(std::string_view text);

  // Entries, comma-separated, of content that begins before byte `end` and was not taken yet.
  std::string take(int64_t end);

 private:
  struct Group {
    std::string bytes;
    std::string text;
    double logprob = 0;
    std::string top;
  };
  struct Entry {
    int64_t begin = 0;  // byte of the content
    std::string json;
  };
  void match();

  const Tokenizer& tokenizer_;
  StreamDecoder decoder_;
  size_t num_alternatives_;
  Group open_;  // tokens since the last whole character
  bool has_open_ = false;
  std::vector<Group> unmatched_;  // whole, content or not yet known
  std::string unmatched_text_;    // content whose groups are not matched
  int64_t content_bytes_ = 0;     // before unmatched_text_
  std::vector<Entry> ready_;
  size_t num_taken_ = 0;
};

}  // namespace tandem
