// text/xtml_reply_header.h: the header of a tag that a model wrote: `call tool="f" index="1"`. Part of reply_parser.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem {

enum class XtmlTag { kUnknown, kMessage, kThink, kResponse, kTools, kCall, kArgument, kJson };

struct XtmlHeader {
  XtmlTag tag = XtmlTag::kUnknown;
  bool is_bare = false;  // a known name and nothing else
  std::vector<std::pair<std::string, std::string>> attributes;

  std::optional<std::string> attribute(std::string_view key) const;  // the first of that key
};

// White space around is ignored; the name goes up to the first space. An attribute is key="value" up to the next quote,
// &quot; and &amp; unescaped; other words are passed over.
XtmlHeader parse_xtml_header(std::string_view text);

}  // namespace tandem
