// text/segment.h: what a chat renderer emits, and how it becomes ids.
//
//   Each segment is encoded ALONE and the id lists are joined: ` role`, `="`, `user`, `"` are four encodes, since BPE
//   over the joined text would merge across the borders. Text that a user, a tool or the model wrote is always a text
//   segment, whose spelled-out control names stay ordinary ids: this is the protection against injection.
#pragma once

#include <string>
#include <vector>

#include "base/ids.h"
#include "text/tokenizer.h"

namespace tandem {

struct Segment {
  std::string text;
  bool is_control = false;  // encode_control, else encode_text
  bool operator==(const Segment&) const = default;
};

std::vector<TokenId> encode_segments(const Tokenizer& tokenizer, const std::vector<Segment>& segments);

// The plain concatenation: for people to read, never to be encoded.
std::string joined_text(const std::vector<Segment>& segments);

}  // namespace tandem
