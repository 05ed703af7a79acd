// server/legacy_logprobs.h: the logprobs object of /v1/completions: parallel lists, one entry a token.
//
//   A token that is no whole characters shows its bytes as U+FFFD; its text_offset is where its text begins, counted in
//   characters of the choice's text. One object serves one choice, on one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/service.h"
#include "text/tokenizer.h"

namespace tandem {

class LegacyLogprobs {
 public:
  LegacyLogprobs(const Tokenizer& tokenizer, int32_t num_alternatives)
      : tokenizer_(&tokenizer), num_alternatives_(static_cast<size_t>(num_alternatives)) {}

  // A token of the choice; `text` is what it made certain.
  void token(const TokenOutput& output, std::string_view text);
  bool has_entries() const { return !entries_.empty(); }
  // The object for the tokens since the last call.
  std::string take();

 private:
  struct Entry {
    std::string token;
    std::string logprob;
    std::string top;
    int64_t offset = 0;
  };

  const Tokenizer* tokenizer_;
  size_t num_alternatives_;
  int64_t num_characters_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace tandem
