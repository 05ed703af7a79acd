// corpus/chat_example.h: one conversation to learn from, and its token ids with the loss on what the model must write.
//
//   The prompt is rendered as the HTTP API renders it (text/xtml_renderer.h). Trained is what follows a generation
//   prompt up to and including <|end_of_msg|>: of the reply, and of every earlier assistant turn: think text,
//   <|close|>think<|sep|>, response, tools, <|close|>message<|sep|><|end_of_msg|>. Not trained: prompts, tool results,
//   and the tags that a generation prompt already holds (open(message), then open(think) or open(response)).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "corpus/chat_draw.h"
#include "text/chat_message.h"
#include "text/tokenizer.h"

namespace tandem {

enum class ChatFamily {
  kGreeting,     // hello, who are you, thank you
  kArithmetic,   // + - × of two numbers, worked out in the think channel, or in the answer when thinking is off
  kCopy,         // a text given back exactly
  kRecall,       // facts stated and asked for after a gap
  kMultiTurn,    // sums and facts over several turns, then a question about an early one
  kReading,      // a question on a text in the prompt, perhaps one that it does not answer
  kToolCall,     // declared tools, the reply is a call
  kToolAnswer,   // call and result in the history, the reply uses the result
  kUnknownTool,  // asked for what no declared tool does: the reply says so
  kJson,         // response_format json_object or json_schema
  kEveryday,     // the next day, counting, the larger number, spelling; and what a small model does not know
};
inline constexpr int kNumChatFamilies = 11;
std::string_view chat_family_name(ChatFamily family);

struct ChatExample {
  ChatFamily family = ChatFamily::kGreeting;
  ChatRequest request;            // up to the generation prompt
  Message reply;                  // what the model must write
  std::string answer;             // a right reply's content contains it; empty: the reply is a call
  std::vector<std::string> keys;  // of its items (chat_draw.h)
  int64_t gap_tokens = 0;         // kRecall: length of what lies between fact and question, by the generator's measure
};

struct ChatTokens {
  std::vector<TokenId> ids;
  std::vector<uint8_t> loss;  // 1: trained; as many as ids
  size_t num_prompt = 0;      // ids in front of the reply
};

// kUnsupported when the tokenizer lacks a control name of the format; what the renderer refuses.
Result<ChatTokens> encode_example(const Tokenizer& tokenizer, const ChatExample& example);

}  // namespace tandem
