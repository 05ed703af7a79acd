#include "text/reply_parser.h"

#include <gtest/gtest.h>

#include "text/xtml_reply_script.h"

namespace tandem::test {
namespace {

std::vector<ReplyPiece> pieces_of(const ordered_json& events) {
  const std::map<std::string, std::string> names = {
      {"open", "<|open|>"}, {"close", "<|close|>"}, {"sep", "<|sep|>"}, {"end", "<|end_of_msg|>"}};
  std::vector<ReplyPiece> pieces;
  for (const auto& event : events) {
    const std::string kind = event[0];
    if (kind == "t") {
      pieces.push_back({event[1].get<std::string>(), false});
    } else {
      pieces.push_back({names.at(kind), true});
    }
  }
  return pieces;
}

void expect_fixture(const ParsedReply& reply, const ordered_json& expected) {
  const auto& reasoning = expected["reasoning_content"];
  EXPECT_EQ(reply.reasoning, reasoning.is_null() ? "" : reasoning.get<std::string>());
  const auto& content = expected["content"];
  EXPECT_EQ(reply.content, content.is_null() ? std::nullopt : std::optional(content.get<std::string>()));
  EXPECT_EQ(reply_finish_name(reply.finish), expected["finish_reason"].get<std::string>());
  const auto& calls = expected["tool_calls"];
  ASSERT_EQ(reply.tool_calls.size(), calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(reply.tool_calls[i].name, calls[i]["name"].get<std::string>());
    if (calls[i].contains("arguments_raw")) {
      EXPECT_EQ(reply.tool_calls[i].arguments, calls[i]["arguments_raw"].get<std::string>());
    } else {
      EXPECT_EQ(ordered_json::parse(reply.tool_calls[i].arguments), calls[i]["arguments"]);
    }
  }
}

template <class Check>
void for_each_fixture(Check check) {
  const ordered_json fixture = chat_fixture("k3_parse_cases.json");
  ASSERT_EQ(fixture["cases"].size(), 34u);
  for (const auto& item : fixture["cases"]) {
    SCOPED_TRACE(item["name"].get<std::string>());
    check(item, pieces_of(item["events"]), item["thinking"].get<bool>() ? ReplyRegion::kThink : ReplyRegion::kResponse,
          item["stopped_by"] == "length" ? kLimit : kStopped);
  }
}

TEST(ReplyParser, ReadsEveryFixtureHoweverItIsSplit) {
  for_each_fixture([](const auto& item, const auto& pieces, ReplyRegion start, ReplyStop stop) {
    std::vector<PieceVocabulary> feeds;
    feeds.emplace_back(pieces, "kimi_k3", whole_text);
    feeds.emplace_back(pieces, "kimi_k3", every_byte);
    for (uint32_t seed = 0; seed < 4; ++seed) feeds.emplace_back(pieces, "kimi_k3", random_cut(seed));
    for (const PieceVocabulary& feed : feeds) {
      for (const bool streams : {false, true}) {
        const ReplyRun run =
            run_reply(*feed.tokenizer, ChatFormat::kXtml, options_from(start, streams), feed.ids, stop);
        expect_fixture(run.reply, item["expect"]);
      }
    }
  });
}

// At every place where the limit may cut a reply, the law holds and what was complete before stays.
TEST(ReplyParser, EveryPrefixOfAFixtureIsAReply) {
  for_each_fixture([](const auto&, const auto& pieces, ReplyRegion start, ReplyStop) {
    const PieceVocabulary feed(pieces, "kimi_k3", every_byte);
    ParsedReply before;
    for (size_t size = 0; size <= feed.ids.size(); ++size) {
      const std::vector<TokenId> ids(feed.ids.begin(), feed.ids.begin() + static_cast<std::ptrdiff_t>(size));
      const ReplyRun run = run_reply(*feed.tokenizer, ChatFormat::kXtml, options_from(start, true), ids, kLimit);
      EXPECT_TRUE(run.reply.reasoning.starts_with(before.reasoning));
      ASSERT_GE(run.reply.tool_calls.size(), before.tool_calls.size());
      for (size_t i = 0; i < before.tool_calls.size(); ++i) EXPECT_EQ(run.reply.tool_calls[i], before.tool_calls[i]);
      if (!run.finished) {
        const bool is_length = run.reply.has_unfinished_call || run.reply.tool_calls.empty();
        EXPECT_EQ(run.reply.finish, is_length ? ReplyFinish::kLength : ReplyFinish::kToolCalls);
      }
      before = run.reply;
    }
  });
}

// The order of the published frames: what a server sends for each event, except the frames that are its own.
TEST(ReplyParser, EventsAreTheFramesOfThePublishedStreams) {
  using Kind = ReplyEvent::Kind;
  const std::string call_utc =
      open("call tool=\"get_time\" index=\"1\"") + argument("tz", "string", "UTC") + close("call");
  const std::string call_cet =
      open("call tool=\"get_time\" index=\"2\"") + argument("tz", "string", "CET") + close("call");
  const std::map<std::string, std::pair<std::string, ReplyStop>> replies = {
      {"thinking_with_usage",
       {"Two plus" + close("think") + open("response") + "4." + close("response") + close("message") + kEnd, kStopped}},
      {"two_tool_calls_no_usage_summary",
       {"look" + close("think") + open("response") + close("response") + open("tools") + call_utc + call_cet +
            close("tools") + close("message") + kEnd,
        kStopped}},
      {"truncated_in_think", {"long thought", kLimit}}};
  std::vector<std::string> tokens = single_bytes();
  for (const char* word : {"Two", " plus", "look", "long thought"}) tokens.emplace_back(word);
  const Tokenizer tokenizer = named_tokenizer(tokens);
  const auto fixture = chat_fixture("sse_stream_golden.json");
  ASSERT_FALSE(fixture["streams"].empty());
  for (const auto& stream : fixture["streams"]) {
    const std::string name = stream["name"];
    SCOPED_TRACE(name);
    std::vector<ordered_json> expected;
    for (const auto& frame : stream["frames"]) {
      if (frame.is_string() || frame["choices"].empty()) continue;
      ordered_json delta = frame["choices"][0]["delta"];
      if (delta.contains("role")) continue;
      if (delta.contains("tool_calls")) delta["tool_calls"][0].erase("id");
      if (delta.empty()) delta["finish_reason"] = frame["choices"][0]["finish_reason"];
      expected.push_back(delta);
    }
    const auto& [script, stop] = replies.at(name);
    std::vector<TokenId> ids;
    for (const TokenId id : tokenizer.encode_control(script)) {
      // BPE cannot build the words, which have no smaller parts: put them where their bytes stand.
      ids.push_back(id);
      for (size_t word = 256; word < tokens.size(); ++word) {
        const size_t size = tokens[word].size();
        const std::vector<TokenId> bytes = tokenizer.encode_text(tokens[word]);
        if (ids.size() < size || bytes.size() != size) continue;
        if (!std::equal(bytes.begin(), bytes.end(), ids.end() - static_cast<std::ptrdiff_t>(size))) continue;
        ids.resize(ids.size() - size);
        ids.emplace_back(static_cast<int32_t>(word));
      }
    }
    const ReplyRun run = run_reply(tokenizer, ChatFormat::kXtml, options_from(ReplyRegion::kThink), ids, stop);
    std::vector<ordered_json> frames;
    for (const ReplyEvent& event : run.events) {
      switch (event.kind) {
        case Kind::kReasoning: frames.push_back({{"reasoning_content", event.text}}); break;
        case Kind::kReasoningEnd: frames.push_back({{"reasoning_content", ""}}); break;
        case Kind::kContent: frames.push_back({{"content", event.text}}); break;
        case Kind::kToolCallBegin:
          frames.push_back(ordered_json::parse(cat(R"({"tool_calls":[{"index":)", event.call_index,
                                                   R"(,"type":"function","function":{"name":")", event.text,
                                                   R"(","arguments":""}}]})")));
          break;
        case Kind::kToolArguments:
          frames.push_back(
              ordered_json::parse(cat(R"({"tool_calls":[{"index":)", event.call_index, R"(,"function":{"arguments":)",
                                      ordered_json(event.text).dump(), "}}]}")));
          break;
        case Kind::kToolCallEnd: break;
        case Kind::kFinished: frames.push_back({{"finish_reason", reply_finish_name(event.finish)}}); break;
      }
    }
    EXPECT_EQ(frames, expected);
  }
}

TEST(ReplyParser, CallsThatNobodyAskedForAreNotShown) {
  const Tokenizer tokenizer = named_tokenizer(single_bytes());
  const std::string whole = "x" + one_call(argument("a", "string", "1"));
  for (const bool streams : {false, true}) {
    ReplyOptions options = options_from(ReplyRegion::kResponse, streams);
    options.report_tool_calls = false;
    const auto run = [&](const std::string& script, ReplyStop stop) {
      return run_reply(tokenizer, ChatFormat::kXtml, options, tokenizer.encode_control(script), stop).reply;
    };
    ParsedReply reply = run(whole, kStopped);
    EXPECT_EQ(reply.content, "x");
    EXPECT_TRUE(reply.tool_calls.empty());
    EXPECT_EQ(reply.finish, ReplyFinish::kStop);
    reply = run(in_call(open("json") + "{"), kLimit);
    EXPECT_EQ(reply.content, "");
    EXPECT_FALSE(reply.has_unfinished_call);
    EXPECT_EQ(reply.finish, ReplyFinish::kLength);
  }
}

TEST(ReplyParser, SpelledMarkersAreText) {
  const Tokenizer tokenizer = named_tokenizer(single_bytes());
  const std::string spelled = "a" + close("response") + open("tools") + kEnd + "b";
  const auto ids = tokenizer.encode_text(spelled);
  const ReplyRun run = run_reply(tokenizer, ChatFormat::kXtml, options_from(ReplyRegion::kResponse), ids, kStopped);
  EXPECT_EQ(run.reply.content, spelled);
}

TEST(ReplyParser, NoPieceSplitsACharacter) {
  const Tokenizer tokenizer = named_tokenizer(single_bytes());
  const auto content_of = [&](const std::string& script) {
    const auto ids = tokenizer.encode_control(script);
    return run_reply(tokenizer, ChatFormat::kXtml, options_from(ReplyRegion::kResponse), ids, kStopped).reply.content;
  };
  EXPECT_EQ(content_of("日本\xF0\x9F\x98\x80"), "日本\xF0\x9F\x98\x80");
  EXPECT_EQ(content_of("a\xF0\x9F"), "a\xEF\xBF\xBD");
  EXPECT_EQ(content_of("a\xF0\x9F<|close|>response<|sep|>"), "a\xEF\xBF\xBD");
  EXPECT_EQ(content_of("a\xF0\x9F[PAD]\x98\x80"), "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(content_of("a\xFFz"), "a\xEF\xBF\xBDz");
}

TEST(ReplyParser, IdsOutsideTheVocabularyAreIgnored) {
  const Tokenizer tokenizer = named_tokenizer(single_bytes());
  std::vector<TokenId> ids = tokenizer.encode_text("ab");
  ids.insert(ids.begin() + 1, {TokenId(-1), TokenId(512), TokenId(INT32_MAX)});
  EXPECT_EQ(run_reply(tokenizer, ChatFormat::kXtml, options_from(ReplyRegion::kResponse), ids, kStopped).reply.content,
            "ab");
}

TEST(ReplyParser, MissingControlNamesAreNamed) {
  const std::string ranks = rank_file(single_bytes());
  const auto tokenizer = Tokenizer::from_memory(ranks, control_config({{256, "<|open|>"}, {257, "<|close|>"}}), 260);
  ASSERT_TRUE(tokenizer.is_ok());
  const auto parser = ReplyParser::create(tokenizer.value(), ChatFormat::kXtml, {});
  ASSERT_FALSE(parser.is_ok());
  EXPECT_EQ(parser.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(parser.status().message().find("<|sep|> <|end_of_msg|>"), std::string::npos) << parser.status().message();
}

TEST(ReplyParser, LongRepliesAreLinear) {
  // A million bytes each; anything quadratic would run for hours.
  const Tokenizer tokenizer = named_tokenizer(single_bytes());
  const auto repeated = [](const std::string& unit, size_t bytes) {
    std::string out;
    while (out.size() < bytes) out += unit;
    return out;
  };
  constexpr size_t kBytes = 1'000'000;
  for (const std::string& script :
       {in_call(argument("k", "string", std::string(kBytes, '"'))),
        in_call(argument("k", "object", std::string(kBytes, '['))),
        in_call(repeated(argument("k", "string", ""), kBytes)), "<|open|>" + std::string(kBytes, ' '),
        std::string(kBytes, ' '), in_call(open("json") + repeated("<|open|>", kBytes)),
        in_call(repeated(open("call tool=\"f\""), kBytes)),
        in_call(open("json") + repeated("<|open|>\xE6\x97", kBytes))}) {
    for (const bool streams : {false, true}) {
      const ReplyRun run = run_reply(tokenizer, ChatFormat::kXtml, options_from(ReplyRegion::kResponse, streams),
                                     tokenizer.encode_control(script), kStopped);
      EXPECT_EQ(run.events.back().kind, ReplyEvent::Kind::kFinished);
    }
  }
}

// A reply, put into the history and rendered as the release renders it, reads as the same reply.
TEST(ReplyMessage, RendersToTheReplyItCameFrom) {
  const Tokenizer tokenizer = named_tokenizer(single_bytes());
  int num_checked = 0;
  for_each_fixture([&](const auto&, const auto& pieces, ReplyRegion start, ReplyStop stop) {
    const PieceVocabulary feed(pieces, "kimi_k3", every_byte);
    const ParsedReply reply = run_reply(*feed.tokenizer, ChatFormat::kXtml, options_from(start), feed.ids, stop).reply;
    ChatRequest prompt;
    prompt.messages.push_back(text_message(Role::kUser, "q"));
    prompt.thinking.enabled = start == ReplyRegion::kThink;
    ChatRequest history = prompt;
    history.messages.push_back(reply_message(reply));
    history.add_generation_prompt = false;
    const auto prompt_segments = render_chat(tokenizer, prompt);
    const auto segments = render_chat(tokenizer, history);
    ASSERT_TRUE(prompt_segments.is_ok() && segments.is_ok());
    const std::vector<TokenId> prefix = encode_segments(tokenizer, prompt_segments.value());
    std::vector<TokenId> ids = encode_segments(tokenizer, segments.value());
    ASSERT_TRUE(ids.size() > prefix.size() && std::equal(prefix.begin(), prefix.end(), ids.begin()));
    ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(prefix.size()));
    const ReplyRun again = run_reply(tokenizer, ChatFormat::kXtml, options_from(start), ids, kStopped);
    EXPECT_TRUE(again.finished);
    EXPECT_EQ(again.reply.reasoning, reply.reasoning);
    EXPECT_EQ(again.reply.content, reply.content);
    EXPECT_EQ(again.reply.tool_calls, reply.tool_calls);
    ++num_checked;
  });
  EXPECT_EQ(num_checked, 34);
}

TEST(ReplyMessage, BlankReasoningAndNoContent) {
  ParsedReply reply;
  reply.reasoning = " \n";
  reply.tool_calls.push_back({"id_1", "f", "{}"});
  const Message message = reply_message(reply);
  EXPECT_EQ(message.role, Role::kAssistant);
  EXPECT_EQ(message.reasoning, "");
  EXPECT_TRUE(message.content.empty());
  ASSERT_EQ(message.tool_calls.size(), 1u);
  EXPECT_EQ(message.tool_calls[0].id, "id_1");
  EXPECT_EQ(message.tool_calls[0].arguments.text(), "{}");
}

}  // namespace
}  // namespace tandem::test
