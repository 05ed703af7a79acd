#include "text/stream_decoder.h"

#include "base/utf8.h"

namespace tandem {

std::string StreamDecoder::append(TokenId id) {
  if (!tokenizer_->contains(id) || (skip_special_ && tokenizer_->is_control(id))) return {};
  return append_bytes(tokenizer_->token_bytes(id));
}

std::string StreamDecoder::append_bytes(std::string_view bytes) {
  pending_ += bytes;
  std::string out;
  size_t at = 0;
  while (at < pending_.size()) {
    const std::string_view rest = std::string_view(pending_).substr(at);
    const Utf8Step step = decode_utf8(rest);
    if (step.truncated) break;
    out += step.valid ? rest.substr(0, step.size) : kReplacementCharacter;
    at += step.size;
  }
  pending_.erase(0, at);
  return out;
}

std::string StreamDecoder::flush() {
  std::string out = replace_invalid_utf8(pending_);
  pending_.clear();
  return out;
}

}  // namespace tandem
