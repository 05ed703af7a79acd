// evaluate/judge.h: whether a reply is the right one.
//
//   An answer is right when the reply's content contains the example's answer and nothing was called. A call is valid
//   when the reply has complete calls only, each of a declared tool with arguments that are a JSON object and fulfil
//   its schema; it is exact when names and arguments equal the example's, in order. A JSON answer is valid when the
//   whole content is a JSON object that fulfils the schema, if any was given; it is right when it is the example's
//   value. Stateless: any thread.
#pragma once

#include <string>
#include <vector>

#include "corpus/chat_example.h"
#include "text/reply_parser.h"

namespace tandem {

struct Verdict {
  bool right = false;  // an exact call, where a call is asked for
  bool valid = false;  // calls and JSON answers; elsewhere as `right`
  std::string fault;   // empty when right
};

Verdict judge_reply(const ChatExample& example, const ParsedReply& reply);

// Every tool that the conversation declares, at the top or on the way.
std::vector<Tool> declared_tools(const ChatRequest& request);

}  // namespace tandem
