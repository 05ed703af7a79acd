#include "text/k2_reply_parser.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "text/trimmed.h"

namespace tandem {
namespace {

enum class Mark {
  kEnd,
  kOtherMessage,  // the marker of another message: the model runs on past its own
  kThinkOpen,
  kThinkClose,
  kSectionBegin,
  kSectionEnd,
  kCallBegin,
  kArgumentBegin,
  kCallEnd,
};

struct MarkName {
  std::string_view name;
  Mark mark;
};
constexpr MarkName kMarkNames[] = {
    {"<|im_end|>", Mark::kEnd},
    {"[EOS]", Mark::kEnd},
    {"<|im_user|>", Mark::kOtherMessage},
    {"<|im_assistant|>", Mark::kOtherMessage},
    {"<|im_system|>", Mark::kOtherMessage},
    {"<think>", Mark::kThinkOpen},
    {"</think>", Mark::kThinkClose},
    {"<|tool_calls_section_begin|>", Mark::kSectionBegin},
    {"<|tool_call_section_begin|>", Mark::kSectionBegin},
    {"<|tool_calls_section_end|>", Mark::kSectionEnd},
    {"<|tool_call_section_end|>", Mark::kSectionEnd},
    {"<|tool_call_begin|>", Mark::kCallBegin},
    {"<|tool_call_argument_begin|>", Mark::kArgumentBegin},
    {"<|tool_call_end|>", Mark::kCallEnd},
};

using Marks = std::vector<std::pair<TokenId, Mark>>;

Marks find_marks(const Tokenizer& tokenizer) {
  Marks marks;
  for (const auto& [name, mark] : kMarkNames) {
    if (const auto id = tokenizer.control_id(name)) marks.emplace_back(*id, mark);
  }
  return marks;
}

Status check_marks(const Tokenizer& tokenizer, const Marks& marks, ReplyRegion start) {
  std::string missing;
  const auto need = [&](std::string_view name) { missing += cat(missing.empty() ? "" : " ", name); };
  const auto has = [&](Mark mark) {
    return std::any_of(marks.begin(), marks.end(), [&](const auto& entry) { return entry.second == mark; });
  };
  if (!tokenizer.control_id("<|im_end|>")) need("<|im_end|>");
  if (start == ReplyRegion::kThink && !has(Mark::kThinkClose)) need("</think>");
  constexpr MarkName kSection[] = {{"<|tool_calls_section_begin|>", Mark::kSectionBegin},
                                   {"<|tool_calls_section_end|>", Mark::kSectionEnd},
                                   {"<|tool_call_begin|>", Mark::kCallBegin},
                                   {"<|tool_call_argument_begin|>", Mark::kArgumentBegin},
                                   {"<|tool_call_end|>", Mark::kCallEnd}};
  const bool has_any = std::any_of(std::begin(kSection), std::end(kSection), [&](auto part) { return has(part.mark); });
  for (const MarkName& part : kSection) {
    if (has_any && !has(part.mark)) need(part.name);
  }
  if (missing.empty()) return Status::ok();
  return Status::unsupported(cat("reply: the Kimi K2 format needs control names that the tokenizer lacks: ", missing));
}

class K2ReplyGrammar : public ReplyGrammar {
 public:
  K2ReplyGrammar(const Tokenizer& tokenizer, Marks marks, const ReplyOptions& options, ReplyBuilder& builder)
      : tokenizer_(tokenizer),
        marks_(std::move(marks)),
        tool_names_(options.tool_names),
        builder_(builder),
        region_(options.start == ReplyRegion::kThink ? Region::kThink : Region::kContent) {}

  void text(std::string_view text) override;
  void control(TokenId id) override;
  void end(ReplyStop stop) override;
  bool finished() const override { return region_ == Region::kFinished; }

 private:
  enum class Region { kThink, kContent, kSection, kId, kArguments, kEnded, kFinished };

  void control_in_arguments(TokenId id, std::optional<Mark> mark);
  void apply(Mark mark);
  std::string call_name(std::string_view id) const;
  void begin_arguments();
  void end_call();

  const Tokenizer& tokenizer_;
  Marks marks_;
  std::vector<std::string> tool_names_;
  ReplyBuilder& builder_;
  Region region_;
  std::string id_;                // text of ID
  bool call_is_content_ = false;  // nobody knows whom it calls
};

void K2ReplyGrammar::text(std::string_view text) {
  switch (region_) {
    case Region::kThink: builder_.reasoning(text); break;
    case Region::kContent: builder_.content(text); break;
    case Region::kId: id_ += text; break;
    case Region::kArguments:
      if (!call_is_content_) {
        builder_.arguments(text);
      } else if (builder_.reports_calls()) {
        builder_.content(text);
      }
      break;
    case Region::kSection:
    case Region::kEnded:
    case Region::kFinished: break;
  }
}

void K2ReplyGrammar::control(TokenId id) {
  if (finished()) return;
  const auto found = std::find_if(marks_.begin(), marks_.end(), [&](const auto& entry) { return entry.first == id; });
  const std::optional<Mark> mark = found == marks_.end() ? std::nullopt : std::optional(found->second);
  if (mark == Mark::kEnd) {
    end(ReplyStop::kStopToken);
    region_ = Region::kFinished;
  } else if (region_ == Region::kEnded) {
    return;
  } else if (region_ == Region::kArguments) {
    control_in_arguments(id, mark);
  } else if (mark) {
    apply(*mark);
  }
}

// Only the markers of the section end the arguments; any other is part of their text.
void K2ReplyGrammar::control_in_arguments(TokenId id, std::optional<Mark> mark) {
  if (mark == Mark::kCallEnd || mark == Mark::kSectionEnd || mark == Mark::kCallBegin || mark == Mark::kSectionBegin) {
    apply(*mark);
  } else if (!call_is_content_) {
    text(tokenizer_.token_bytes(id));
  }
}

void K2ReplyGrammar::apply(Mark mark) {
  const bool in_call = region_ == Region::kId || region_ == Region::kArguments;
  switch (mark) {
    case Mark::kThinkOpen:
      if (!in_call) region_ = Region::kThink;
      break;
    case Mark::kThinkClose:
      if (region_ == Region::kThink) region_ = Region::kContent;
      break;
    case Mark::kSectionBegin:
      if (in_call) end_call();
      region_ = Region::kSection;
      break;
    case Mark::kSectionEnd:
      if (in_call) end_call();
      if (region_ == Region::kSection) region_ = Region::kContent;
      break;
    case Mark::kCallBegin:  // the section's own begin may be missing
      if (in_call) end_call();
      region_ = Region::kId;
      id_.clear();
      break;
    case Mark::kArgumentBegin:
      if (region_ == Region::kId) begin_arguments();
      break;
    case Mark::kCallEnd:
      if (in_call) end_call();
      break;
    case Mark::kOtherMessage:
    case Mark::kEnd:
      end(ReplyStop::kStopToken);
      region_ = Region::kEnded;
      break;
  }
}

void K2ReplyGrammar::end(ReplyStop) {
  if (region_ == Region::kId) {
    builder_.count_unfinished_call();
  } else if (region_ == Region::kArguments && !call_is_content_) {
    builder_.abandon_call();
  }
  region_ = Region::kEnded;
}

std::string K2ReplyGrammar::call_name(std::string_view id) const {
  const std::string_view name = k2_name_in_id(id);
  if (!name.empty()) return std::string(name);
  if (std::find(tool_names_.begin(), tool_names_.end(), id) != tool_names_.end()) return std::string(id);
  return tool_names_.size() == 1 ? tool_names_.front() : std::string();
}

void K2ReplyGrammar::begin_arguments() {
  const std::string_view id = trimmed(id_);
  std::string name = call_name(id);
  region_ = Region::kArguments;
  call_is_content_ = name.empty();
  if (call_is_content_) {
    text(id_);
  } else {
    builder_.begin_call(std::move(name), id.empty() ? std::nullopt : std::optional<std::string>(id));
  }
}

void K2ReplyGrammar::end_call() {
  if (region_ == Region::kId) begin_arguments();  // a call without arguments
  if (!call_is_content_) builder_.end_call();
  region_ = Region::kSection;
}

}  // namespace

std::string_view k2_name_in_id(std::string_view id) {
  const size_t colon = id.rfind(':');
  const size_t dot = id.substr(0, colon).rfind('.');
  if (colon == std::string_view::npos && dot == std::string_view::npos) return {};
  const size_t begin = dot == std::string_view::npos ? 0 : dot + 1;
  return trimmed(id.substr(begin, colon == std::string_view::npos ? std::string_view::npos : colon - begin));
}

Result<std::unique_ptr<ReplyGrammar>> create_k2_reply_grammar(const Tokenizer& tokenizer, const ReplyOptions& options,
                                                              ReplyBuilder& builder) {
  Marks marks = find_marks(tokenizer);
  TANDEM_RETURN_IF_ERROR(check_marks(tokenizer, marks, options.start));
  return std::unique_ptr<ReplyGrammar>(std::make_unique<K2ReplyGrammar>(tokenizer, std::move(marks), options, builder));
}

}  // namespace tandem
