// text/k2_renderer.h: the older chat formats: Kimi K2 in four editions, and Kimi-Linear, which follows K2-0905.
//
//   role block: marker role_name <|im_middle|> body <|im_end|>, without newlines between. Markers are control segments;
//   all text between two markers is one text segment, so that ids agree with the published templates wherever the text
//   spells no marker. These formats have no place for tool_choice, response_format and thinking effort.
//   Source: the published Jinja templates (tests/data/fixtures/chat/k2_render_golden.json). Stateless: any thread.
#pragma once

#include <vector>

#include "base/result.h"
#include "text/chat_message.h"
#include "text/segment.h"

namespace tandem {

enum class K2Edition {
  kFirstRelease,  // K2-Instruct as first released: no tool calls in history, names ignored
  kToolCalls,     // K2-Instruct later
  k0905,          // the same; without a generation prompt the last message stays open
  kThinking,      // K2-Thinking: <think> before the content of assistant messages
};

struct K2Options {
  K2Edition edition = K2Edition::k0905;
  bool think_is_control = false;  // the vocabulary has <think> and </think> as control names
};

// kInvalidArgument: a tool result without tool_call_id where the format shows one.
Result<std::vector<Segment>> render_k2(const ChatRequest& request, const K2Options& options);

}  // namespace tandem
