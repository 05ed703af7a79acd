// What the cache's explanations say: places in the request, causes, the edit that restores reuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api_harness.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kUnit = 16;

Tokenizer nano_tokenizer() {
  auto tokenizer = Tokenizer::load(data_path("../../models/nano"), 3072);
  EXPECT_TRUE(tokenizer.is_ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

// What a cache that knows one prompt would say of another: every unit has a checkpoint.
PrefixMatch match_of(const std::vector<TokenId>& cached, const std::vector<TokenId>& prompt) {
  PrefixMatch match;
  const auto size = static_cast<int64_t>(prompt.size());
  const size_t shorter = std::min(cached.size(), prompt.size());
  const auto common =
      std::mismatch(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(shorter), cached.begin()).first -
      prompt.begin();
  match.prompt_tokens = size;
  match.hash_unit = kUnit;
  match.hit_tokens = std::min(common, size - 1) / kUnit * kUnit;
  match.matched_tokens = common / kUnit * kUnit;
  match.known_tokens = match.matched_tokens;
  for (int64_t at = kUnit; at <= match.hit_tokens; at += kUnit) match.checkpoints.push_back(at);
  if (match.hit_tokens < size - 1) match.missed.push_back({match.hit_tokens, size - 1, MissReason::kNeverSeen});
  match.missed.push_back({size - 1, size, MissReason::kLastToken});
  if (common < static_cast<std::ptrdiff_t>(shorter)) {
    const auto end = std::min<std::ptrdiff_t>(common + kUnit, static_cast<std::ptrdiff_t>(cached.size()));
    Divergence divergence;
    divergence.position = common;
    divergence.found = prompt[static_cast<size_t>(common)];
    divergence.expected = cached[static_cast<size_t>(common)];
    divergence.expected_tokens.assign(cached.begin() + common, cached.begin() + end);
    match.divergence = std::move(divergence);
    match.hit_without_divergence = std::min<int64_t>(static_cast<int64_t>(cached.size()), size - 1) / kUnit * kUnit;
  }
  return match;
}

class CacheLint : public ::testing::Test {
 protected:
  CacheLint() : api(nano_tokenizer(), toy_options(nano_tokenizer())) {
    api.engine.on_lint = [&](const std::vector<TokenId>& prompt, const CacheScope& scope) -> Result<CacheExplanation> {
      asked_scope = scope;
      return CacheExplanation{"", match_of(cached, prompt), scope.salt.empty() ? "" : "set", 0.001, prompt};
    };
  }

  void remember(const ordered_json& body) {
    api.chat(body);
    cached = api.engine.submitted.back().prompt;
  }
  ordered_json lint(const ordered_json& body) {
    const auto exchange = api.send("/v1/cache/lint", body);
    EXPECT_EQ(exchange->response().status, 200) << exchange->response().body;
    return ordered_json::parse(exchange->response().body);
  }
  ordered_json edit(const ordered_json& body) { return lint(body)["edit"]; }

  Api api;
  std::vector<TokenId> cached;
  CacheScope asked_scope;
};

ordered_json conversation() {
  return ordered_json::parse(R"({"messages":[
    {"role":"system","content":"You are a careful helper. The time is 2026-01-05 10:22:31 and you answer in English."},
    {"role":"user","content":"What is the capital of France?"},
    {"role":"assistant","content":"The capital is Paris.","reasoning_content":"They ask for a city that I know well, in France."},
    {"role":"user","content":"And of Italy? Please tell me in one sentence, as short as you can."}]})");
}

TEST_F(CacheLint, StrippedReasoning) {
  remember(conversation());
  ordered_json stripped = conversation();
  stripped["messages"][2].erase("reasoning_content");
  const ordered_json report = lint(stripped);
  EXPECT_EQ(report["object"], "cache.lint");
  const ordered_json& edit = report["edit"];
  EXPECT_EQ(edit["cause"], "stripped_reasoning");
  EXPECT_EQ(edit["field"], "messages[2].reasoning_content");
  const std::string message = edit["message"];
  EXPECT_THAT(message,
              StartsWith("messages[2].reasoning_content: the cached conversation has reasoning text here (\"They ask"));
  EXPECT_THAT(message, HasSubstr("yours has none: send reasoning_content back and "));
  EXPECT_THAT(message, HasSubstr(cat(" of ", report["prompt_tokens"].get<int64_t>(), " tokens are reused")));
  EXPECT_GT(edit["would_hit_tokens"], report["hit_tokens"]);
  EXPECT_EQ(edit["would_save_tokens"].get<int64_t>(),
            edit["would_hit_tokens"].get<int64_t>() - report["hit_tokens"].get<int64_t>());
  EXPECT_DOUBLE_EQ(edit["would_save_seconds"].get<double>(), 0.001 * edit["would_save_tokens"].get<double>());
  EXPECT_EQ(report["divergence"]["place"]["message"], 2);
  EXPECT_EQ(report["divergence"]["place"]["role"], "assistant");
  EXPECT_EQ(report["divergence"]["found"]["text"], "<|close|>");
  EXPECT_THAT(report["divergence"]["expected_text"].get<std::string>(), StartsWith("They"));
  EXPECT_EQ(report["nearest_checkpoint"], report["hit_tokens"]);
}

TEST_F(CacheLint, EveryCause) {
  const auto cause = [&](const ordered_json& known, const ordered_json& sent) {
    remember(known);
    const ordered_json found = edit(sent);
    EXPECT_FALSE(found["message"].get<std::string>().empty());
    return std::pair<std::string, std::string>(found["cause"],
                                               found["field"].is_null() ? "" : found["field"].get<std::string>());
  };
  using Cause = std::pair<std::string, std::string>;
  const ordered_json base = conversation();
  ordered_json body = base;
  body["messages"][2]["reasoning_content"] = "They ask for something else entirely.";
  EXPECT_EQ(cause(base, body), Cause("other_reasoning", "messages[2].reasoning_content"));
  EXPECT_EQ(cause(base, with(base, {{"reasoning_effort", "low"}})), Cause("thinking_effort", "reasoning_effort"));
  EXPECT_EQ(cause(base, with(base, {{"thinking", false}})), Cause("thinking_effort", "reasoning_effort"));
  EXPECT_EQ(cause(with(base, {{"thinking", false}}), base), Cause("thinking_effort", "reasoning_effort"));

  body = base;
  body["messages"][0]["content"] =
      "You are a careful helper. The time is 2026-01-05 10:22:58 and you answer in English.";
  EXPECT_EQ(cause(base, body), Cause("timestamp", "messages[0].content"));
  body["messages"][0]["content"] =
      "You are a careless helper. The time is 2026-01-05 10:22:31 and you answer in English.";
  EXPECT_EQ(cause(base, body), Cause("system_prompt", "messages[0].content"));
  body["messages"][0]["content"] =
      "You are a careful helper.  The time is 2026-01-05 10:22:31 and you answer in English.";
  EXPECT_EQ(cause(base, body), Cause("white_space", "messages[0].content"));
  body = base;
  body["messages"][2]["content"] = "The capital is Paris.\n";
  EXPECT_EQ(cause(base, body), Cause("white_space", "messages[2].content"));
  body["messages"][2]["content"] = "The capital is Lyon.";
  EXPECT_EQ(cause(base, body), Cause("text", "messages[2].content"));
  body = base;
  body["messages"].erase(2);
  EXPECT_EQ(cause(base, body).first, "messages") << "an answer was dropped";
  body = base;
  body["messages"].erase(0);
  EXPECT_EQ(cause(base, body).first, "messages") << "the system prompt was dropped";
}

ordered_json tool(const std::string& name, const std::string& description) {
  return {{"type", "function"},
          {"function", {{"name", name}, {"description", description}, {"parameters", {{"type", "object"}}}}}};
}

TEST_F(CacheLint, ToolsAndCalls) {
  ordered_json base = with(conversation(), {{"tools", {tool("add", "Adds."), tool("find", "Finds.")}}});
  const auto found = [&](const ordered_json& known, const ordered_json& sent) {
    remember(known);
    const ordered_json report = edit(sent);
    return std::pair<std::string, std::string>(report["cause"], report["field"]);
  };
  using Cause = std::pair<std::string, std::string>;
  EXPECT_EQ(found(base, with(base, {{"tools", {tool("find", "Finds."), tool("add", "Adds.")}}})),
            Cause("tools_order", "tools"));
  EXPECT_EQ(found(base, with(base, {{"tools", {tool("add", "Adds numbers."), tool("find", "Finds.")}}})),
            Cause("tools", "tools"));
  EXPECT_EQ(found(base, with(base, {{"tools", ordered_json::array()}})), Cause("tools", "tools"));
  EXPECT_EQ(found(with(base, {{"tools", ordered_json::array()}}), base), Cause("tools", "tools"));

  base["messages"] = ordered_json::parse(R"([{"role":"user","content":"add 2 and 40"},
    {"role":"assistant","content":"","reasoning_content":"call it","tool_calls":[{"id":"a","type":"function","function":{"name":"add","arguments":"{\"left\": 2, \"right\": 40}"}}]},
    {"role":"tool","tool_call_id":"a","content":"42 is the sum of these two"},{"role":"user","content":"thanks"}])");
  ordered_json body = base;
  body["messages"][1]["tool_calls"][0]["function"]["arguments"] = R"({"left": 2, "right": 41})";
  EXPECT_EQ(found(base, body), Cause("tool_call", "messages[1].tool_calls[0].function.arguments.right"));
  body = base;
  body["messages"][2]["content"] = "43 is the sum of these two";
  EXPECT_EQ(found(base, body), Cause("text", "messages[2].content"));
}

// A prompt that no edit would let reuse more of: only what is a mistake in itself is named.
TEST_F(CacheLint, NothingWouldBeSaved) {
  int64_t unit = 4096;
  const auto saves_nothing = [&](const ordered_json& known, const ordered_json& sent) {
    remember(known);
    api.engine.on_lint = [&](const std::vector<TokenId>& prompt, const CacheScope&) -> Result<CacheExplanation> {
      PrefixMatch match = match_of(cached, prompt);
      match.hash_unit = unit;
      match.hit_tokens = 0;
      match.hit_without_divergence = 0;
      return CacheExplanation{"", match, "", 0.001, prompt};
    };
    const ordered_json report = lint(sent);
    EXPECT_FALSE(report["divergence"].is_null());
    EXPECT_EQ(report["edit"]["would_save_tokens"], 0);
    return report["edit"];
  };
  const ordered_json base = conversation();
  const auto silent = [&](const ordered_json& sent) {
    const ordered_json found = saves_nothing(base, sent);
    EXPECT_EQ(found["cause"], "none");
    EXPECT_TRUE(found["field"].is_null());
    EXPECT_EQ(found["message"], "nothing to edit: no edit here would reuse more than is reused");
  };
  silent(ordered_json::parse(R"({"messages":[{"role":"user","content":"Sing me a song."}]})"));
  ordered_json other = base;
  other["messages"][0]["content"] = "You write poems.";
  silent(other);
  other = base;
  other["messages"][2]["reasoning_content"] = "Something else.";
  silent(other);

  const auto named = [&](const ordered_json& sent, const std::string& why) {
    const ordered_json found = saves_nothing(base, sent);
    EXPECT_THAT(found["message"].get<std::string>(), HasSubstr("; nothing is saved now, because " + why));
    return found["cause"].get<std::string>();
  };
  const std::string is_short = "what is left of the prompt is shorter than a unit of 4,096 tokens";
  ordered_json stripped = base;
  stripped["messages"][2].erase("reasoning_content");
  EXPECT_EQ(named(stripped, is_short), "stripped_reasoning");
  EXPECT_EQ(named(with(base, {{"reasoning_effort", "low"}}), is_short), "thinking_effort");
  EXPECT_EQ(named(with(base, {{"tools", {tool("add", "Adds.")}}}), is_short), "tools");
  unit = kUnit;
  EXPECT_EQ(named(stripped, "no state of the cached conversation lies between tokens 0 and "), "stripped_reasoning");
}

TEST_F(CacheLint, NothingToEdit) {
  remember(conversation());
  ordered_json longer = conversation();
  longer["messages"].push_back({{"role", "assistant"}, {"content", "Rome."}});
  // The prompt asks for the answer that the longer one has: no difference, only an end.
  const ordered_json report = lint(conversation());
  EXPECT_TRUE(report["divergence"].is_null());
  EXPECT_EQ(report["edit"]["cause"], "none");
  EXPECT_TRUE(report["edit"]["field"].is_null());
  EXPECT_THAT(report["edit"]["message"].get<std::string>(), StartsWith("nothing to edit"));
  const auto of_reason = [&](MissReason reason) {
    api.engine.on_lint = [reason](const std::vector<TokenId>& prompt, const CacheScope&) -> Result<CacheExplanation> {
      PrefixMatch match = match_of(prompt, prompt);
      match.hit_tokens = 0;
      match.missed = {{0, match.prompt_tokens - 1, reason},
                      {match.prompt_tokens - 1, match.prompt_tokens, MissReason::kLastToken}};
      return CacheExplanation{"", match, "", 0.0, prompt};
    };
    return lint(conversation());
  };
  EXPECT_EQ(of_reason(MissReason::kSalt)["edit"]["cause"], "salt");
  EXPECT_EQ(of_reason(MissReason::kSalt)["edit"]["field"], "cache_salt");
  for (const MissReason reason : {MissReason::kNeverSeen, MissReason::kEvicted, MissReason::kNotYetWritten,
                                  MissReason::kShorterThanUnit, MissReason::kNoCheckpoint, MissReason::kQuarantined}) {
    const ordered_json found = of_reason(reason);
    EXPECT_EQ(found["reason"], miss_reason_name(reason));
    EXPECT_THAT(found["edit"]["message"].get<std::string>(), StartsWith("nothing to edit"));
    EXPECT_EQ(found["missed"][0]["reason"], miss_reason_name(reason));
    EXPECT_EQ(found["missed"][1]["reason"], "last_token");
  }
}

TEST_F(CacheLint, RawPromptsAndScopes) {
  const std::string text = "A raw text prompt that goes on for a while, so that some units of it are whole.";
  cached =
      api.tokenizer.encode_text(text + " And then it ends this way, with a good many words more than a unit holds.");
  const auto exchange =
      api.send("/v1/cache/lint",
               {{"prompt", text + " And then it starts anew, with a good many words more than a unit holds."},
                {"cache_salt", "s"}},
               {{"x-api-key", "k"}});
  const ordered_json report = ordered_json::parse(exchange->response().body);
  EXPECT_EQ(asked_scope.salt, "s");
  EXPECT_EQ(report["salt"], "set");
  EXPECT_EQ(report["divergence"]["place"]["field"], "prompt");
  EXPECT_EQ(report["edit"]["cause"], "text");
  EXPECT_EQ(api.refused("/v1/cache/lint", "{}")["param"], "prompt");
  EXPECT_EQ(api.refused("/v1/cache/lint", R"({"prompt":[99999]})")["param"], "prompt[0]");
  EXPECT_EQ(api.refused("/v1/cache/lint", R"({"messages":3})")["param"], "messages");
}

TEST_F(CacheLint, ToolResultsKeepTheirNumbers) {
  ordered_json base = with(kHello, {{"tools", {tool("add", "Adds."), tool("find", "Finds.")}}});
  base["messages"] = ordered_json::parse(R"([{"role":"user","content":"do both"},
    {"role":"assistant","content":"","tool_calls":[{"id":"a","type":"function","function":{"name":"add","arguments":"{}"}},
      {"id":"b","type":"function","function":{"name":"find","arguments":"{}"}}]},
    {"role":"tool","tool_call_id":"b","content":"found it in the garden"},
    {"role":"tool","tool_call_id":"a","content":"the sum is one hundred"}])");
  remember(base);
  ordered_json body = base;
  body["messages"][2]["content"] = "nothing in the garden";
  EXPECT_EQ(edit(body)["field"], "messages[2].content") << "as the client numbers it, not as it is rendered";
}

TEST_F(CacheLint, ExplainByRequest) {
  remember(conversation());
  ordered_json stripped = conversation();
  stripped["messages"][2].erase("reasoning_content");
  std::string owner;
  api.engine.on_explain = [&](const std::string& id, const std::string& asker) -> Result<CacheExplanation> {
    owner = asker;
    const EngineRequest& last = api.engine.submitted.back();
    if (id != last.id) return Status::not_found("unknown");
    return CacheExplanation{id, match_of(cached, last.prompt), "", 0.5, last.prompt};
  };
  const ordered_json answer = api.chat(with(stripped, {{"explain_cache", true}}));
  const ordered_json& cache = answer["usage"]["cache"];
  EXPECT_EQ(cache["reason"], "never_seen");
  EXPECT_EQ(cache["hit_tokens"].get<int64_t>() % kUnit, 0);
  EXPECT_DOUBLE_EQ(cache["saved_seconds"].get<double>(), 0.5 * cache["hit_tokens"].get<double>());
  EXPECT_TRUE(cache["divergence"].is_number_integer());
  const auto exchange = api.get("/v1/cache/explain/" + answer["id"].get<std::string>());
  const ordered_json report = ordered_json::parse(exchange->response().body);
  EXPECT_EQ(report["object"], "cache.explanation");
  EXPECT_EQ(report["request"], answer["id"]);
  EXPECT_EQ(report["edit"]["cause"], "stripped_reasoning");
  EXPECT_EQ(report["divergence"]["position"], cache["divergence"]);
  int64_t covered = report["hit_tokens"];
  for (const auto& range : report["missed"]) {
    EXPECT_EQ(range["begin"], covered);
    covered = range["end"];
    EXPECT_DOUBLE_EQ(range["seconds"].get<double>(), 0.5 * range["tokens"].get<double>());
  }
  EXPECT_EQ(covered, report["prompt_tokens"]);
  EXPECT_EQ(api.get("/v1/cache/explain/other")->response().status, 404);
  // Not asked for: strict clients see no key they do not know.
  EXPECT_FALSE(api.chat(stripped)["usage"].contains("cache"));
  StreamRules rules;
  EXPECT_TRUE(api.stream(with(stripped, {{"explain_cache", true}}), rules).messages.at(0).usage.contains("cache"));
}

TEST(CacheAdvice, K2Prompts) {
  const Tokenizer tokenizer = named_tokenizer(single_bytes(), "kimi_k2");
  Api api(named_tokenizer(single_bytes(), "kimi_k2"));
  std::vector<TokenId> cached;
  api.engine.on_lint = [&](const std::vector<TokenId>& prompt, const CacheScope&) -> Result<CacheExplanation> {
    return CacheExplanation{"", match_of(cached, prompt), "", 0.0, prompt};
  };
  api.chat(kHello);
  cached = api.engine.submitted.back().prompt;
  ordered_json body = kHello;
  body["messages"][0]["content"] = "help!";
  const auto exchange = api.send("/v1/cache/lint", body);
  EXPECT_EQ(ordered_json::parse(exchange->response().body)["edit"]["field"], "messages[0].content")
      << "the format's own system prompt is no message of the client's";
}

// Explanations of any divergence at any place are well formed.
TEST(CacheAdvice, CutsAnywhere) {
  const Tokenizer tokenizer = nano_tokenizer();
  Api api(nano_tokenizer(), toy_options(tokenizer));
  api.chat(conversation());
  const std::vector<TokenId> ids = api.engine.submitted.back().prompt;
  Random random(5);
  for (size_t cut = 0; cut < ids.size(); ++cut) {
    std::vector<TokenId> other(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(cut));
    for (size_t n = 1 + random() % 8; n > 0; --n) other.emplace_back(static_cast<int32_t>(random() % 3072));
    api.engine.on_lint = [&](const std::vector<TokenId>&, const CacheScope&) -> Result<CacheExplanation> {
      return CacheExplanation{"", match_of(ids, other), "", 0.0, other};
    };
    const auto exchange = api.send("/v1/cache/lint", {{"prompt", {1}}});
    const ordered_json report = ordered_json::parse(exchange->response().body);
    EXPECT_FALSE(report["edit"]["message"].get<std::string>().empty());
  }
}

}  // namespace
}  // namespace tandem::test
