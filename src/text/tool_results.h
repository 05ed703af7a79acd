// text/tool_results.h: which call a tool result answers.
//
//   A run of consecutive tool messages is looked up in the most recent assistant message's calls: by tool_call_id (the
//   first call with that id), else by the alias NAME:POSITION, position from 0. When every message of the run has a
//   call, the run is sorted by the calls' order, keeping the order of equals, and takes the called functions' names;
//   when any has none, the run stays as it is. Stateless: any thread.
#pragma once

#include <vector>

#include "text/chat_message.h"

namespace tandem {

std::vector<Message> order_tool_results(std::vector<Message> messages);

}  // namespace tandem
