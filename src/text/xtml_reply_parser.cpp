#include "text/xtml_reply_parser.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/cat.h"
#include "text/reply_arguments.h"
#include "text/xtml_reply_header.h"

namespace tandem {
namespace {

struct XtmlIds {
  TokenId open;
  TokenId close;
  TokenId sep;
  TokenId end_of_msg;
  std::optional<TokenId> eos;  // ends a reply too, where the vocabulary has it
};

Result<XtmlIds> resolve_ids(const Tokenizer& tokenizer) {
  XtmlIds ids;
  std::string missing;
  const auto resolve = [&](std::string_view name, TokenId& id) {
    const auto found = tokenizer.control_id(name);
    if (found) {
      id = *found;
    } else {
      missing += cat(missing.empty() ? "" : " ", name);
    }
  };
  resolve("<|open|>", ids.open);
  resolve("<|close|>", ids.close);
  resolve("<|sep|>", ids.sep);
  resolve("<|end_of_msg|>", ids.end_of_msg);
  ids.eos = tokenizer.control_id("[EOS]");
  if (!missing.empty()) {
    return Status::unsupported(
        cat("reply: the Kimi K3 format needs control names that the tokenizer lacks: ", missing));
  }
  return ids;
}

class XtmlReplyGrammar : public ReplyGrammar {
 public:
  XtmlReplyGrammar(const Tokenizer& tokenizer, const XtmlIds& ids, ReplyRegion start, ReplyBuilder& builder)
      : tokenizer_(tokenizer),
        ids_(ids),
        builder_(builder),
        arguments_(builder),
        region_(start == ReplyRegion::kThink ? Region::kThink : Region::kResponse),
        response_seen_(start == ReplyRegion::kResponse) {}

  void text(std::string_view text) override;
  void control(TokenId id) override;
  void end(ReplyStop stop) override;
  bool finished() const override { return region_ == Region::kFinished; }

 private:
  enum class Region { kThink, kTop, kResponse, kTools, kCall, kArgument, kJson, kEnded, kFinished };
  struct PendingHeader {
    bool is_close = false;
    std::string text;
  };

  bool in_value() const { return region_ == Region::kArgument || region_ == Region::kJson; }
  bool is_over() const { return region_ == Region::kEnded || region_ == Region::kFinished; }

  void region_text(std::string_view text);
  void header_text(std::string_view text);
  void end_header(bool has_sep);
  void spell_header(const PendingHeader& header, std::string_view tail);
  void apply_open(const XtmlHeader& header);
  void apply_close(XtmlTag tag);
  void open_call(const XtmlHeader& header);
  void complete_call();
  void finish_message();

  const Tokenizer& tokenizer_;
  XtmlIds ids_;
  ReplyBuilder& builder_;
  ReplyArguments arguments_;
  Region region_;
  bool response_seen_;
  bool tools_seen_ = false;
  bool call_has_name_ = false;
  std::optional<PendingHeader> header_;
};

void XtmlReplyGrammar::text(std::string_view text) {
  if (is_over()) return;
  if (header_) {
    header_text(text);
  } else {
    region_text(text);
  }
}

void XtmlReplyGrammar::region_text(std::string_view text) {
  switch (region_) {
    case Region::kThink: builder_.reasoning(text); break;
    case Region::kResponse: builder_.content(text); break;
    case Region::kTop:  // an answer whose response tag is missing
      if (response_seen_ || tools_seen_) break;
      builder_.content(builder_.has_content() ? text : without_leading_space(text));
      break;
    case Region::kArgument:
    case Region::kJson:
      if (call_has_name_) arguments_.value(text);
      break;
    case Region::kTools:
    case Region::kCall:
    case Region::kEnded:
    case Region::kFinished: break;
  }
}

// The header takes the characters that fit; the first that does not fit abandons it and is text of the region. So the
// outcome does not depend on how the text is split.
void XtmlReplyGrammar::header_text(std::string_view text) {
  size_t taken = std::min(text.size(), kMaxXtmlHeaderBytes - header_->text.size());
  const auto continues_character = [&](size_t at) { return (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80; };
  while (taken > 0 && taken < text.size() && continues_character(taken)) --taken;
  header_->text += text.substr(0, taken);
  if (taken == text.size()) return;
  const PendingHeader header = *std::exchange(header_, std::nullopt);
  if (in_value()) spell_header(header, "");
  region_text(text.substr(taken));
}

void XtmlReplyGrammar::control(TokenId id) {
  if (finished()) return;
  if (id == ids_.end_of_msg || (ids_.eos && id == *ids_.eos)) {
    end(ReplyStop::kStopToken);
    region_ = Region::kFinished;
    return;
  }
  if (is_over()) return;
  if (id == ids_.open || id == ids_.close) {
    if (header_) end_header(false);
    if (!is_over()) header_ = PendingHeader{id == ids_.close, ""};
  } else if (id == ids_.sep && header_) {
    end_header(true);
  } else if (in_value()) {
    text(tokenizer_.token_bytes(id));
  }
}

void XtmlReplyGrammar::end(ReplyStop stop) {
  header_.reset();
  const bool is_cut = in_value() || (region_ == Region::kCall && stop == ReplyStop::kTokenLimit);
  if (is_cut && call_has_name_) {
    builder_.abandon_call();
  } else if (is_cut) {
    builder_.count_unfinished_call();
  } else if (region_ == Region::kCall) {
    complete_call();
  }
  region_ = Region::kEnded;
}

void XtmlReplyGrammar::spell_header(const PendingHeader& header, std::string_view tail) {
  region_text(tokenizer_.token_bytes(header.is_close ? ids_.close : ids_.open));
  region_text(header.text);
  region_text(tail);
}

void XtmlReplyGrammar::end_header(bool has_sep) {
  const PendingHeader pending = *std::exchange(header_, std::nullopt);
  const XtmlHeader header = parse_xtml_header(pending.text);
  const bool counts = has_sep || header.is_bare;
  if (in_value()) {
    const XtmlTag own = region_ == Region::kArgument ? XtmlTag::kArgument : XtmlTag::kJson;
    const bool ends_value = header.tag == own || header.tag == XtmlTag::kCall || header.tag == XtmlTag::kTools ||
                            header.tag == XtmlTag::kMessage;
    if (!counts || !pending.is_close || !ends_value) {
      spell_header(pending, has_sep ? tokenizer_.token_bytes(ids_.sep) : std::string_view());
      return;
    }
    if (call_has_name_) arguments_.close_value();
    region_ = Region::kCall;
  }
  if (!counts) return;
  if (pending.is_close) {
    apply_close(header.tag);
  } else {
    apply_open(header);
  }
}

void XtmlReplyGrammar::apply_open(const XtmlHeader& header) {
  const Region from = region_;
  switch (header.tag) {
    case XtmlTag::kUnknown: break;
    case XtmlTag::kMessage: finish_message(); break;
    case XtmlTag::kThink:
      if (from != Region::kCall) region_ = Region::kThink;
      break;
    case XtmlTag::kResponse:
      if (from == Region::kCall) complete_call();
      region_ = Region::kResponse;
      response_seen_ = true;
      break;
    case XtmlTag::kTools:
      if (from == Region::kCall) break;
      region_ = Region::kTools;
      tools_seen_ = true;
      break;
    case XtmlTag::kCall:
      if (from == Region::kCall) complete_call();
      if (from == Region::kCall || from == Region::kTools) open_call(header);
      break;
    case XtmlTag::kArgument:
      if (from != Region::kCall) break;
      region_ = Region::kArgument;
      if (call_has_name_) arguments_.open_argument(header.attribute("key"), header.attribute("type").value_or(""));
      break;
    case XtmlTag::kJson:
      if (from != Region::kCall) break;
      region_ = Region::kJson;
      if (call_has_name_) arguments_.open_json();
      break;
  }
}

void XtmlReplyGrammar::apply_close(XtmlTag tag) {
  switch (tag) {
    case XtmlTag::kMessage: finish_message(); break;
    case XtmlTag::kThink:
      if (region_ == Region::kThink) region_ = Region::kTop;
      break;
    case XtmlTag::kResponse:
      if (region_ == Region::kThink || region_ == Region::kResponse) region_ = Region::kTop;
      break;
    case XtmlTag::kTools:
      if (region_ == Region::kCall) complete_call();
      if (region_ == Region::kTools) region_ = Region::kTop;
      break;
    case XtmlTag::kCall:
      if (region_ == Region::kCall) complete_call();
      break;
    case XtmlTag::kUnknown:
    case XtmlTag::kArgument:
    case XtmlTag::kJson: break;
  }
}

void XtmlReplyGrammar::open_call(const XtmlHeader& header) {
  std::string name = header.attribute("tool").value_or("");
  call_has_name_ = !name.empty();  // a call without one is read and left out
  region_ = Region::kCall;
  if (!call_has_name_) return;
  builder_.begin_call(std::move(name), std::nullopt);
  arguments_.begin_call();
}

void XtmlReplyGrammar::complete_call() {
  region_ = Region::kTools;
  if (!call_has_name_) return;
  arguments_.end_call();
  builder_.end_call();
}

void XtmlReplyGrammar::finish_message() {
  if (region_ == Region::kCall) complete_call();
  region_ = Region::kEnded;
}

}  // namespace

Result<std::unique_ptr<ReplyGrammar>> create_xtml_reply_grammar(const Tokenizer& tokenizer, const ReplyOptions& options,
                                                                ReplyBuilder& builder) {
  const auto ids = resolve_ids(tokenizer);
  if (!ids.is_ok()) return ids.status();
  return std::unique_ptr<ReplyGrammar>(
      std::make_unique<XtmlReplyGrammar>(tokenizer, ids.value(), options.start, builder));
}

}  // namespace tandem
