// server/call_ids.h: ids of tool calls, unique against every id of the conversation they join.
//
//   The K3 format has no ids: NAME_ and 12 to 15 random digits, at most 64 bytes, NAME reduced to letters, digits and
//   _. The K2 format writes them into the prompt: functions.NAME:N, N counting the calls of the whole conversation. One
//   object serves one request, on one thread at a time.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_format.h"
#include "text/chat_message.h"

namespace tandem {

class CallIds {
 public:
  CallIds(ChatFormat format, const std::vector<Message>& conversation);

  // `index` of the call within its reply.
  std::string next(std::string_view tool_name, int64_t index);

 private:
  ChatFormat format_;
  std::set<std::string> used_;
  int64_t num_earlier_calls_ = 0;
};

}  // namespace tandem
