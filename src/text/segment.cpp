#include "text/segment.h"

namespace tandem {

std::vector<TokenId> encode_segments(const Tokenizer& tokenizer, const std::vector<Segment>& segments) {
  std::vector<TokenId> ids;
  for (const Segment& segment : segments) {
    if (segment.is_control) {
      tokenizer.encode_control_to(segment.text, ids);
    } else {
      tokenizer.encode_text_to(segment.text, ids);
    }
  }
  return ids;
}

std::string joined_text(const std::vector<Segment>& segments) {
  std::string out;
  for (const Segment& segment : segments) out += segment.text;
  return out;
}

}  // namespace tandem
