// server/chat_candidate.h: one candidate of a chat request: tokens in, increments of an assistant message out.
//
//   The increments, joined, are the message: a stream and a whole answer are told the same. A stop string is looked for
//   in content only; behind it, or behind the first call of a reply that may have one, the candidate is over and
//   further tokens are ignored. One candidate belongs to one thread at a time; tokenizer and ids outlive it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/service.h"
#include "server/call_ids.h"
#include "server/chat_prompt.h"
#include "server/generation_options.h"
#include "server/logprob_entries.h"
#include "server/stop_matcher.h"

namespace tandem {

struct ChatDelta {
  enum class Kind { kReasoning, kReasoningEnd, kContent, kCallBegin, kCallArguments };
  Kind kind = Kind::kContent;
  std::string text;  // kCallBegin: the tool's name
  int64_t call_index = 0;
  std::string call_id;   // kCallBegin
  std::string logprobs;  // kContent: entries of it, comma-separated
};

struct ChatCall {
  std::string id;
  std::string name;
  std::string arguments;
  bool is_complete = false;
};

struct ChatReply {
  std::string reasoning;
  std::string content;
  std::vector<ChatCall> calls;
  std::string logprobs;  // all entries
  ReplyFinish finish = ReplyFinish::kStop;
};

struct ChatReading {
  bool include_reasoning = true;   // false: left out
  bool separate_reasoning = true;  // false: put before the content, as content
};

class ChatCandidate {
 public:
  static Result<ChatCandidate> create(const Tokenizer& tokenizer, const ChatPrompt& prompt,
                                      const GenerationOptions& options, ChatReading reading, CallIds& call_ids);

  void append(const TokenOutput& output, std::vector<ChatDelta>& deltas);
  // No token follows: the engine's kStop or kLength. Not after is_over().
  void finish(EngineFinish finish, std::vector<ChatDelta>& deltas);

  // The reply ended, by finish() or before the engine knew: then the engine should be told.
  bool is_over() const { return over_; }
  const ChatReply& reply() const { return reply_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_reasoning_tokens() const { return num_reasoning_tokens_; }

 private:
  ChatCandidate(ReplyParser parser, const Tokenizer& tokenizer, const ChatPrompt& prompt,
                const GenerationOptions& options, ChatReading reading, CallIds& call_ids);
  void take(std::vector<ReplyEvent>& events, std::vector<ChatDelta>& deltas);
  void give(ChatDelta delta, std::vector<ChatDelta>& deltas);
  void give_content(std::string text, std::vector<ChatDelta>& deltas);
  void end_early();
  void count_reasoning(const std::vector<ReplyEvent>& events, bool is_control);

  ReplyParser parser_;
  const Tokenizer* tokenizer_;
  ChatReading reading_;
  CallIds* call_ids_;
  StopMatcher stops_;
  std::optional<LogprobEntries> logprobs_;
  bool parallel_calls_;
  bool ignore_eos_;
  ReplyRegion start_;
  bool over_ = false;
  ReplyRegion region_;  // the last channel that had text
  ChatReply reply_;
  int64_t matched_bytes_ = 0;  // content given out, without reasoning put into it
  int64_t num_tokens_ = 0;
  int64_t num_reasoning_tokens_ = 0;
};

}  // namespace tandem
