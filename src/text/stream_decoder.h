// text/stream_decoder.h: token ids → text while they arrive. What is emitted is valid UTF-8 at every moment.
//
//   An unfinished sequence, so far valid, is held back (at most 3 bytes) until the next tokens finish it; bytes that
//   cannot become valid are one U+FFFD for each maximal subpart. One decoder serves one sequence, on one thread.
#pragma once

#include <string>
#include <string_view>

#include "base/ids.h"
#include "text/tokenizer.h"

namespace tandem {

class StreamDecoder {
 public:
  // `tokenizer` outlives the decoder. With skip_special control ids give nothing, else their name.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  std::string append(TokenId id);  // the text that became certain; an id outside the vocabulary gives nothing
  std::string append_bytes(std::string_view bytes);
  std::string flush();  // the held-back bytes as U+FFFD; the decoder is then as new

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;  // a truncated sequence
};

}  // namespace tandem
