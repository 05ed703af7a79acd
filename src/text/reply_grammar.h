// text/reply_grammar.h: one format's reading of a reply. Part of reply_parser.h; not for others.
//
//   The parser turns ids into whole characters and control ids; a grammar holds the state machine over them.
#pragma once

#include <string_view>

#include "base/ids.h"
#include "text/reply_parser.h"

namespace tandem {

class ReplyGrammar {
 public:
  virtual ~ReplyGrammar() = default;
  virtual void text(std::string_view text) = 0;  // valid UTF-8, not empty
  virtual void control(TokenId id) = 0;
  virtual void end(ReplyStop stop) = 0;  // no token follows; not called once finished
  virtual bool finished() const = 0;     // the end token was seen
};

}  // namespace tandem
