// text/thinking.h: whether the model thinks and how hard, from the several fields clients say it with.
//
//   thinking: chat_template_kwargs.thinking > chat_template_kwargs.enable_thinking > thinking ({type} or boolean) >
//             reasoning_effort / reasoning.effort (`none` is off) > on
//   effort:   chat_template_kwargs.thinking_effort > thinking_effort > thinking.effort > reasoning_effort >
//             reasoning.effort > max
//   Portable names map: minimal, low → low; medium, high → high; xhigh, max → max; none, off, disabled switch thinking
//   off and are never an effort. thinking_effort is K3's own name: low, high, max only. Every field present is checked,
//   also one that another field overrides. Stateless: any thread.
#pragma once

#include "base/result.h"
#include "text/chat_message.h"

namespace tandem {

Result<Thinking> resolve_thinking(const JsonValue& request);

// The low-level encoder's fields: `thinking` (boolean, default on) and `thinking_effort` (no default).
Result<Thinking> bare_thinking(const JsonValue& input);

}  // namespace tandem
