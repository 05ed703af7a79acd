// Routes, methods, models, tokenizing, health.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api_harness.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;

ordered_json body_of(const std::shared_ptr<FakeExchange>& exchange) {
  return ordered_json::parse(exchange->response().body);
}

TEST(ApiRoutes, UnknownRoutesAndMethods) {
  Api api;
  const auto unknown = api.get("/v1/nothing");
  EXPECT_EQ(unknown->response().status, 404);
  EXPECT_EQ(body_of(unknown)["error"]["type"], "not_found_error");
  for (const char* path : {"", "/", "/v1", "/v1/chat/completions/", "/v1/cache/explain/", "//health"}) {
    EXPECT_EQ(api.get(path)->response().status, 404) << path;
  }
  const auto wrong = api.get("/v1/chat/completions");
  EXPECT_EQ(wrong->response().status, 405);
  EXPECT_EQ(wrong->header("Allow"), "POST");
  EXPECT_EQ(body_of(wrong)["error"]["type"], "invalid_request_error");
  const auto post = api.begin("POST", "/health", "{}");
  EXPECT_EQ(post->response().status, 405);
  EXPECT_EQ(post->header("Allow"), "GET");
  EXPECT_EQ(api.begin("HEAD", "/health", "")->response().status, 200);
  EXPECT_EQ(api.begin("DELETE", "/v1/models", "")->response().status, 405);
}

TEST(ApiRoutes, ContentTypes) {
  Api api;
  const auto status = [&](HttpHeaders headers) {
    return api.finish(api.begin("POST", "/v1/chat/completions", kHello.dump(), std::move(headers)))->response().status;
  };
  EXPECT_EQ(status({}), 200);
  EXPECT_EQ(status({{"content-type", "application/json"}}), 200);
  EXPECT_EQ(status({{"content-type", "Application/JSON ; charset=utf-8"}}), 200);
  EXPECT_EQ(status({{"content-type", "application/vnd.api+json"}}), 200);
  EXPECT_EQ(status({{"content-type", "text/plain"}}), 415);
  EXPECT_EQ(status({{"content-type", "multipart/form-data; boundary=x"}}), 415);
  EXPECT_EQ(status({{"content-encoding", "gzip"}}), 415);
  EXPECT_EQ(status({{"content-encoding", "identity"}}), 200);
}

TEST(ApiRoutes, ChatHasTwoPaths) {
  Api api;
  EXPECT_EQ(api.send("/chat/completions", kHello)->response().status, 200);
}

TEST(ApiRoutes, Models) {
  Api api;
  const ordered_json list = body_of(api.get("/v1/models"));
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 2u);
  const ordered_json wanted = {
      {"id", "toy"},   {"object", "model"}, {"created", 0},          {"owned_by", "tandem"},
      {"root", "toy"}, {"parent", nullptr}, {"max_model_len", 4096}, {"permission", ordered_json::array()}};
  EXPECT_EQ(list["data"][0].dump(), wanted.dump());
  EXPECT_EQ(body_of(api.get("/v1/models/toy-alias"))["id"], "toy-alias");
  const auto missing = api.get("/v1/models/other");
  EXPECT_EQ(missing->response().status, 404);
  EXPECT_EQ(body_of(missing)["error"]["code"], "model_not_found");
  ApiOptions slashed = toy_options(api.tokenizer);
  slashed.served_names = {"org/model \"x\""};
  Api other(slashed);
  EXPECT_EQ(body_of(other.get("/v1/models/org/model \"x\""))["id"], "org/model \"x\"");
  EXPECT_FALSE(ApiServer::create(api.engine, api.tokenizer, ApiOptions{}).is_ok());
}

TEST(ApiRoutes, HealthFollowsTheEngine) {
  Api api;
  const auto health = [&](EngineHealth state) {
    api.engine.engine_health = std::move(state);
    const auto exchange = api.get("/health");
    EXPECT_EQ(api.get("/ping")->response().status, exchange->response().status);
    return exchange;
  };
  const auto good = health({0.1, true, false, ""});
  EXPECT_EQ(good->response().status, 200);
  EXPECT_EQ(body_of(good), (ordered_json{{"status", "ok"}}));
  const auto loading = health({0.0, false, false, ""});
  EXPECT_EQ(loading->response().status, 503);
  EXPECT_EQ(loading->response().body, R"({"error":{"code":503,"message":"Loading model","type":"unavailable_error"}})");
  EXPECT_EQ(health({100.0, true, false, ""})->response().status, 503) << "the engine stands still";
  EXPECT_EQ(health({0.0, true, true, ""})->response().status, 503) << "draining";
  EXPECT_THAT(health({0.0, true, false, "verification failed"})->response().body, HasSubstr("verification failed"));
}

TEST(ApiRoutes, VersionAndMetrics) {
  Api api;
  EXPECT_EQ(body_of(api.get("/version")), (ordered_json{{"version", "1.2.3"}}));
  const auto metrics = api.get("/metrics");
  EXPECT_EQ(metrics->response().body, "# metrics\n");
  EXPECT_EQ(metrics->response().content_type, "text/plain; version=0.0.4; charset=utf-8");
}

TEST(ApiRoutes, Tokenize) {
  Api api;
  const ordered_json vllm = body_of(api.send("/tokenize", {{"prompt", "ab<|open|>"}, {"return_token_strs", true}}));
  EXPECT_EQ(vllm["count"], 10);
  EXPECT_EQ(vllm["max_model_len"], 4096);
  EXPECT_EQ(vllm["tokens"][0], 97);
  EXPECT_EQ(vllm["token_strs"][1], "b");
  EXPECT_TRUE(body_of(api.send("/tokenize", {{"prompt", "ab"}}))["token_strs"].is_null());
  const ordered_json special =
      body_of(api.send("/tokenize", {{"content", "ab<|open|>"}, {"parse_special", true}, {"add_special", true}}));
  EXPECT_EQ(special["tokens"], (ordered_json{97, 98, api.tokenizer.control_id("<|open|>")->value}));
  const ordered_json pieces = body_of(api.send("/tokenize", {{"content", "aé"}, {"with_pieces", true}}));
  EXPECT_EQ(pieces["tokens"],
            ordered_json::parse(R"([{"id":97,"piece":"a"},{"id":195,"piece":[195]},{"id":169,"piece":[169]}])"));
  const ordered_json chat = body_of(api.send("/tokenize", kHello));
  api.chat(kHello);
  EXPECT_EQ(chat["count"], api.engine.submitted.back().prompt.size());
  EXPECT_EQ(api.refused("/tokenize", "{}")["param"], "prompt");
  EXPECT_EQ(api.refused("/tokenize", R"({"prompt":3})")["param"], "prompt");
  EXPECT_EQ(api.refused("/tokenize", R"({"content":"x","with_pieces":3})")["param"], "with_pieces");
  EXPECT_EQ(api.refused("/tokenize", R"({"messages":[]})")["param"], "messages");
}

TEST(ApiRoutes, Detokenize) {
  Api api;
  const auto ids = api.tokenizer.encode_control("aé<|open|>");
  ordered_json list = ordered_json::array();
  for (const TokenId id : ids) list.push_back(id.value);
  const ordered_json text = body_of(api.send("/detokenize", {{"tokens", list}}));
  EXPECT_EQ(text["prompt"], "aé<|open|>");
  EXPECT_EQ(text["content"], text["prompt"]);
  EXPECT_EQ(body_of(api.send("/detokenize", {{"tokens", {195}}}))["prompt"], "\uFFFD");
  EXPECT_EQ(body_of(api.send("/detokenize", {{"tokens", ordered_json::array()}}))["prompt"], "");
  EXPECT_EQ(api.refused("/detokenize", "{}")["param"], "tokens");
  EXPECT_EQ(api.refused("/detokenize", R"({"tokens":[99999]})")["param"], "tokens[0]");
  EXPECT_EQ(api.refused("/detokenize", R"({"tokens":["a"]})")["param"], "tokens[0]");
}

// A tokenizer without a chat format serves text; a chat is refused with what is missing.
TEST(ApiRoutes, NoChatFormat) {
  auto tokenizer = Tokenizer::from_memory(rank_file(single_bytes()), control_config({}), 512);
  ASSERT_TRUE(tokenizer.is_ok());
  ApiOptions options = toy_options(tokenizer.value());
  Api api(std::move(tokenizer).value(), options);
  EXPECT_THAT(api.refused_chat(kHello)["message"].get<std::string>(), HasSubstr("no known chat format"));
  api.says("ok");
  EXPECT_EQ(body_of(api.send("/v1/completions", {{"prompt", "x"}}))["choices"][0]["text"], "ok");
}

}  // namespace
}  // namespace tandem::test
