// Stop strings: in whatever pieces the text comes, in content only, and the engine is told.
#include <gtest/gtest.h>

#include "server/api_harness.h"
#include "server/stop_matcher.h"
#include "support/effort.h"

namespace tandem::test {
namespace {

TEST(StopMatcher, HoldsBackNoMoreThanAPrefix) {
  StopMatcher stops({"END", "ENxyz"}, false);
  EXPECT_EQ(stops.append("abE"), "ab");
  EXPECT_EQ(stops.append("N"), "");
  EXPECT_EQ(stops.append("x"), "");
  EXPECT_EQ(stops.append("EN"), "ENx");
  EXPECT_EQ(stops.append("q"), "ENq");
  EXPECT_EQ(stops.append("zEN"), "z");
  EXPECT_EQ(stops.flush(), "EN");
  EXPECT_FALSE(stops.match());
  EXPECT_EQ(stops.append("D..END.."), "D..");
  EXPECT_EQ(stops.match(), "END");
  EXPECT_EQ(stops.append("x"), "");
}

// Against the definition: the earliest end, the longest there; whatever the pieces.
TEST(StopMatcher, RandomTextsAgainstTheDefinition) {
  Random random(7);
  for (int round = 0; round < effort(4000); ++round) {
    const auto word = [&](size_t most) {
      std::string out;
      for (size_t n = 1 + random() % most; n > 0; --n) out += static_cast<char>('a' + random() % 2);
      return out;
    };
    std::vector<std::string> stops;
    for (size_t n = 1 + random() % 3; n > 0; --n) stops.push_back(word(5));
    const std::string text = word(40);
    size_t end = std::string::npos;
    std::string match;
    for (size_t at = 1; at <= text.size() && end == std::string::npos; ++at) {
      for (const std::string& stop : stops) {
        if (!std::string_view(text).substr(0, at).ends_with(stop)) continue;
        end = at;
        if (stop.size() > match.size()) match = stop;
      }
    }
    for (const bool include : {false, true}) {
      StopMatcher matcher(stops, include);
      std::string out;
      for (size_t at = 0; at < text.size();) {
        const size_t size = std::min<size_t>(1 + random() % 6, text.size() - at);
        out += matcher.append(std::string_view(text).substr(at, size));
        at += size;
      }
      out += matcher.match() ? "" : matcher.flush();
      EXPECT_EQ(matcher.match().value_or(""), match);
      EXPECT_EQ(out, end == std::string::npos ? text : text.substr(0, end - (include ? 0 : match.size())));
    }
  }
}

TEST(ChatStops, SpanTokensAndCancelTheCandidate) {
  Api api;
  api.says("think END too" + kAnswer + "one EN two END three" + kDone);
  const SeenMessage message = both(api, with(kHello, {{"stop", {"END", "never"}}}));
  EXPECT_EQ(message.reasoning, "think END too") << "reasoning is not looked at";
  EXPECT_EQ(message.content, "one EN two ");
  EXPECT_EQ(message.finish, "stop");
  ASSERT_FALSE(api.engine.cancelled.empty());
  EXPECT_EQ(api.engine.cancelled[0].id, api.engine.submitted[0].id);
  EXPECT_EQ(api.engine.cancelled[0].candidate, 0);
  EXPECT_EQ(api.engine.num_live(), 0u);
  EXPECT_EQ(both(api, with(kHello, {{"stop", "END"}, {"include_stop_str_in_output", true}})).content, "one EN two END");
}

TEST(ChatStops, AHeldBackPrefixIsGivenOutAtTheEnd) {
  Api api;
  api.says("t" + kAnswer + "abc EN" + kDone);
  EXPECT_EQ(both(api, with(kHello, {{"stop", "END"}})).content, "abc EN");
  api.says("t" + kAnswer + "abc EN");  // the limit
  EXPECT_EQ(both(api, with(kHello, {{"stop", "END"}})).content, "abc EN");
  api.says("t" + kAnswer + "日本語END");
  EXPECT_EQ(both(api, with(kHello, {{"stop", "語"}})).content, "日本");
}

TEST(ChatStops, ToolCallsAreNotLookedAt) {
  Api api;
  api.says("t" + kAnswer + "EN" + in_call(argument("a", "string", "END")) + close("call") + close("tools") +
           close("message") + kEnd);
  const SeenMessage message = both(api, with(with(kHello, kOneTool), {{"stop", "END"}}));
  EXPECT_EQ(message.content, "EN");
  ASSERT_EQ(message.calls.size(), 1u);
  EXPECT_EQ(message.calls[0].arguments, R"({"a": "END"})");
  EXPECT_EQ(message.finish, "tool_calls");
}

// Whatever the split into tokens and the stop: stream, whole answer and the definition agree.
TEST(ChatStops, RandomContents) {
  Random random(3);
  for (int round = 0; round < effort(150); ++round) {
    std::string content;
    for (size_t n = random() % 30; n > 0; --n) content += "ab \n"[random() % 4];
    std::string stop;
    for (size_t n = 1 + random() % 3; n > 0; --n) stop += "ab \n"[random() % 4];
    Api api;
    api.says(content + kDone);
    const SeenMessage message = both(api, with(kHello, {{"stop", stop}, {"thinking", false}}));
    EXPECT_EQ(message.content, content.substr(0, content.find(stop)));
    EXPECT_EQ(message.finish, "stop");
  }
}

}  // namespace
}  // namespace tandem::test
