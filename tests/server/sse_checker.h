// tests/server/sse_checker.h: reads the bytes of a chat stream and checks every rule of its frames on the way.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "text/text_fixtures.h"

namespace tandem::test {

struct SeenCall {
  std::string id;
  std::string name;
  std::string arguments;
  bool operator==(const SeenCall&) const = default;
};

struct SeenMessage {
  std::string reasoning;
  std::string content;
  std::vector<SeenCall> calls;
  std::string finish;
  ordered_json logprobs = ordered_json::array();
  std::vector<int32_t> token_ids;
  ordered_json usage;
};

inline void PrintTo(const SeenCall& call, std::ostream* out) {
  *out << call.id << " " << call.name << " " << call.arguments;
}

struct SeenStream {
  std::vector<ordered_json> frames;  // without [DONE]
  std::map<int64_t, SeenMessage> messages;
  ordered_json usage;  // of the last frame, with include_usage
  ordered_json error;
  bool is_done = false;
};

struct StreamRules {
  bool include_usage = false;
  bool continuous_usage = false;
  bool logprobs = false;
  int64_t num_choices = 1;
};

// The events of the bytes: `data: ` and one line each, nothing else.
inline std::vector<std::string> sse_events(const std::string& bytes) {
  std::vector<std::string> events;
  EXPECT_TRUE(is_valid_utf8(bytes));
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = bytes.find("\n\n", at);
    if (end == std::string::npos) {
      ADD_FAILURE() << "an event without end: " << bytes.substr(at);
      break;
    }
    const std::string event = bytes.substr(at, end - at);
    EXPECT_TRUE(event.starts_with("data: ")) << event;
    EXPECT_EQ(event.find_first_of("\r\n"), std::string::npos) << event;
    events.push_back(event.substr(6));
    at = end + 2;
  }
  return events;
}

class ChatStreamChecker {
 public:
  explicit ChatStreamChecker(StreamRules rules) : rules_(rules) {}

  SeenStream check(const std::string& bytes) {
    const std::vector<std::string> events = sse_events(bytes);
    for (size_t i = 0; i < events.size(); ++i) {
      SCOPED_TRACE(events[i]);
      EXPECT_FALSE(seen_.is_done) << "something behind [DONE]";
      if (events[i] == "[DONE]") {
        seen_.is_done = true;
        continue;
      }
      const ordered_json frame = ordered_json::parse(events[i], nullptr, false);
      if (frame.is_discarded()) {
        ADD_FAILURE() << "a frame that is no JSON";
        continue;
      }
      if (frame.contains("error")) {
        EXPECT_EQ(i + 1, events.size()) << "an error is the last frame";
        EXPECT_EQ(frame.size(), 1u);
        seen_.error = frame["error"];
        continue;
      }
      check_frame(frame);
      seen_.frames.push_back(frame);
    }
    if (seen_.error.is_null()) check_end();
    return std::move(seen_);
  }

 private:
  struct State {
    bool has_role = false;
    bool has_boundary = false;
    bool has_end = false;
    bool left_reasoning = false;
    int64_t open_call = -1;
  };

  void check_frame(const ordered_json& frame) {
    for (const char* key : {"id", "object", "created", "model"}) {
      EXPECT_TRUE(frame.contains(key)) << key;
      if (!head_.contains(key)) head_[key] = frame[key];
      EXPECT_EQ(frame[key], head_[key]) << key;
    }
    EXPECT_EQ(frame["object"], "chat.completion.chunk");
    EXPECT_TRUE(frame["created"].is_number_integer());
    const auto& choices = frame["choices"];
    if (choices.empty()) {
      EXPECT_TRUE(rules_.include_usage) << "a summary nobody asked for";
      EXPECT_TRUE(seen_.usage.is_null()) << "two summaries";
      check_usage(frame["usage"]);
      seen_.usage = frame["usage"];
      return;
    }
    EXPECT_TRUE(seen_.usage.is_null()) << "a choice behind the summary";
    EXPECT_EQ(choices.size(), 1u) << "one choice a frame";
    EXPECT_EQ(frame.contains("usage"), rules_.continuous_usage);
    if (frame.contains("usage")) check_usage(frame["usage"]);
    check_choice(choices[0]);
  }

  static void check_usage(const ordered_json& usage) {
    EXPECT_TRUE(usage["prompt_tokens"].is_number_integer());
    EXPECT_TRUE(usage["completion_tokens"].is_number_integer());
    EXPECT_EQ(usage["total_tokens"].get<int64_t>(),
              usage["prompt_tokens"].get<int64_t>() + usage["completion_tokens"].get<int64_t>());
    EXPECT_TRUE(usage["prompt_tokens_details"]["cached_tokens"].is_number_integer());
    EXPECT_TRUE(usage["completion_tokens_details"]["reasoning_tokens"].is_number_integer());
  }

  void check_choice(const ordered_json& choice) {
    const int64_t index = choice["index"].get<int64_t>();
    EXPECT_LT(index, rules_.num_choices);
    State& state = states_[index];
    SeenMessage& message = seen_.messages[index];
    EXPECT_FALSE(state.has_end) << "something behind the end of a choice";
    EXPECT_TRUE(choice.contains("finish_reason"));
    const ordered_json& delta = choice["delta"];
    for (const auto& [key, value] : delta.items()) EXPECT_FALSE(value.is_null()) << "null in a delta: " << key;
    if (choice.contains("token_ids")) {
      for (const auto& id : choice["token_ids"]) message.token_ids.push_back(id.get<int32_t>());
    }
    if (!state.has_role) {
      state.has_role = true;
      EXPECT_EQ(delta, (ordered_json{{"role", "assistant"}, {"content", ""}}));
      EXPECT_TRUE(choice["finish_reason"].is_null());
      EXPECT_FALSE(choice.contains("logprobs"));
      return;
    }
    EXPECT_FALSE(delta.contains("role"));
    if (delta.empty()) {
      state.has_end = true;
      message.finish = choice["finish_reason"].get<std::string>();
      EXPECT_TRUE(message.finish == "stop" || message.finish == "length" || message.finish == "tool_calls");
      check_usage(choice["usage"]);
      message.usage = choice["usage"];
      return;
    }
    EXPECT_TRUE(choice["finish_reason"].is_null());
    EXPECT_FALSE(choice.contains("usage"));
    EXPECT_EQ(choice.contains("logprobs"), rules_.logprobs);
    check_delta(choice, delta, state, message);
  }

  static void check_delta(const ordered_json& choice, const ordered_json& delta, State& state, SeenMessage& message) {
    const int kinds = static_cast<int>(delta.contains("content")) +
                      static_cast<int>(delta.contains("reasoning_content")) +
                      static_cast<int>(delta.contains("tool_calls"));
    EXPECT_EQ(kinds, 1) << "exactly one kind of increment a frame";
    if (delta.contains("reasoning_content")) {
      const std::string text = delta["reasoning_content"];
      message.reasoning += text;
      if (!text.empty()) return;
      EXPECT_FALSE(state.has_boundary) << "two boundaries";
      EXPECT_FALSE(message.reasoning.empty()) << "a boundary of nothing";
      EXPECT_FALSE(state.left_reasoning);
      state.has_boundary = true;
      return;
    }
    EXPECT_EQ(state.has_boundary, !message.reasoning.empty()) << "no boundary before the first answer";
    state.left_reasoning = true;
    if (delta.contains("content")) {
      EXPECT_FALSE(delta["content"].get<std::string>().empty());
      message.content += delta["content"].get<std::string>();
      if (choice.contains("logprobs") && !choice["logprobs"].is_null()) {
        for (const auto& entry : choice["logprobs"]["content"]) message.logprobs.push_back(entry);
      }
      return;
    }
    EXPECT_EQ(delta["tool_calls"].size(), 1u);
    const ordered_json& call = delta["tool_calls"][0];
    const int64_t index = call["index"].get<int64_t>();
    const bool is_first = index == state.open_call + 1;
    EXPECT_TRUE(is_first || index == state.open_call) << "calls go forwards only";
    if (is_first) {
      state.open_call = index;
      EXPECT_EQ(call.size(), 4u);
      EXPECT_EQ(call["type"], "function");
      EXPECT_EQ(call["function"].size(), 2u);
      EXPECT_EQ(call["function"]["arguments"], "");
      message.calls.push_back({call["id"], call["function"]["name"], ""});
      return;
    }
    EXPECT_EQ(call.size(), 2u);
    EXPECT_EQ(call["function"].size(), 1u);
    message.calls.back().arguments += call["function"]["arguments"].get<std::string>();
  }

  void check_end() {
    EXPECT_TRUE(seen_.is_done);
    EXPECT_EQ(static_cast<int64_t>(states_.size()), rules_.num_choices);
    for (const auto& [index, state] : states_) EXPECT_TRUE(state.has_end) << "choice " << index << " has no end";
    EXPECT_EQ(!seen_.usage.is_null(), rules_.include_usage);
  }

  StreamRules rules_;
  SeenStream seen_;
  ordered_json head_;
  std::map<int64_t, State> states_;
};

}  // namespace tandem::test
