// tests/text/reply_support.h: feeding replies to a parser and checking the law that every reply obeys: the events,
// joined, are the final message.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "text/reply_parser.h"
#include "text/text_fixtures.h"

namespace tandem {

inline void PrintTo(const ParsedToolCall& call, std::ostream* out) {
  *out << call.id.value_or("-") << " " << call.name << " " << call.arguments;
}

}  // namespace tandem

namespace tandem::test {

struct ReplyRun {
  ParsedReply reply;
  std::vector<ReplyEvent> events;
  bool finished = false;  // before finish()
};

// What the events say, put together.
inline ParsedReply joined_events(const std::vector<ReplyEvent>& events) {
  using Kind = ReplyEvent::Kind;
  ParsedReply out;
  std::string content;
  std::vector<ParsedToolCall> open;
  size_t num_ended = 0;
  for (const ReplyEvent& event : events) {
    EXPECT_TRUE(is_valid_utf8(event.text));
    const auto index = static_cast<size_t>(event.call_index);
    switch (event.kind) {
      case Kind::kReasoning: out.reasoning += event.text; break;
      case Kind::kReasoningEnd: EXPECT_FALSE(out.reasoning.empty()); break;
      case Kind::kContent: content += event.text; break;
      case Kind::kToolCallBegin:
        EXPECT_EQ(index, open.size());
        EXPECT_EQ(index, num_ended) << "a call begins inside another";
        open.push_back({event.call_id, event.text, ""});
        break;
      case Kind::kToolArguments:
        EXPECT_EQ(index + 1, open.size());
        open.back().arguments += event.text;
        break;
      case Kind::kToolCallEnd:
        EXPECT_EQ(index, num_ended);
        ++num_ended;
        out.tool_calls.push_back(open.back());
        break;
      case Kind::kFinished:
        EXPECT_EQ(&event, &events.back());
        out.finish = event.finish;
        break;
    }
  }
  EXPECT_TRUE(!events.empty() && events.back().kind == Kind::kFinished);
  if (!content.empty() || out.tool_calls.empty()) out.content = std::move(content);
  return out;
}

inline void expect_law(const ReplyRun& run) {
  ParsedReply joined = joined_events(run.events);
  joined.has_unfinished_call = run.reply.has_unfinished_call;  // the events do not tell
  EXPECT_EQ(joined.reasoning, run.reply.reasoning);
  EXPECT_EQ(joined.content, run.reply.content);
  EXPECT_EQ(joined.tool_calls, run.reply.tool_calls);
  EXPECT_EQ(joined, run.reply);
}

inline ReplyRun run_reply(const Tokenizer& tokenizer, ChatFormat format, const ReplyOptions& options,
                          const std::vector<TokenId>& ids, ReplyStop stop) {
  ReplyRun run;
  auto parser = ReplyParser::create(tokenizer, format, options);
  if (!parser.is_ok()) {
    ADD_FAILURE() << parser.status().message();
    return run;
  }
  for (const TokenId id : ids) parser.value().append(id, run.events);
  run.finished = parser.value().finished();
  run.reply = parser.value().finish(stop, run.events);
  expect_law(run);
  return run;
}

// A piece of a reply: ordinary text, or the name of a control id.
struct ReplyPiece {
  std::string text;
  bool is_control = false;
};

// The pieces as ids of a vocabulary made for them, in which each text is the tokens that `split` cuts it into. A cut
// may fall inside a character.
struct PieceVocabulary {
  template <class Split>
  PieceVocabulary(const std::vector<ReplyPiece>& pieces, const std::string& list, Split split) {
    std::vector<std::string> tokens = single_bytes();
    std::map<std::string, int32_t> id_of;
    for (size_t i = 0; i < tokens.size(); ++i) id_of[tokens[i]] = static_cast<int32_t>(i);
    for (const ReplyPiece& piece : pieces) {
      if (piece.is_control) continue;
      for (const std::string& token : split(piece.text)) {
        if (id_of.try_emplace(token, static_cast<int32_t>(tokens.size())).second) tokens.push_back(token);
      }
    }
    tokenizer.emplace(named_tokenizer(tokens, list));
    for (const ReplyPiece& piece : pieces) {
      if (piece.is_control) {
        ids.push_back(tokenizer->control_id(piece.text).value());
        continue;
      }
      for (const std::string& token : split(piece.text)) ids.emplace_back(id_of.at(token));
    }
  }

  std::optional<Tokenizer> tokenizer;
  std::vector<TokenId> ids;
};

inline std::vector<std::string> whole_text(const std::string& text) {
  return text.empty() ? std::vector<std::string>{} : std::vector<std::string>{text};
}

inline std::vector<std::string> every_byte(const std::string& text) {
  std::vector<std::string> out;
  for (const char c : text) out.emplace_back(1, c);
  return out;
}

// The same cut of the same text for one seed.
inline auto random_cut(uint32_t seed) {
  return [seed](const std::string& text) {
    Random random(seed + static_cast<uint32_t>(text.size()));
    std::vector<std::string> out;
    for (size_t at = 0; at < text.size();) {
      const size_t size = std::min<size_t>(1 + random() % 7, text.size() - at);
      out.push_back(text.substr(at, size));
      at += size;
    }
    return out;
  };
}

}  // namespace tandem::test
