// The API over the real engine and the bundled model: what a conversation's next turn takes from the cache.
#include <gtest/gtest.h>

#include "engine/serving_support.h"
#include "server/api_server.h"
#include "server/fake_exchange.h"
#include "text/text_fixtures.h"

namespace tandem::test {
namespace {

class ServedCache : public ::testing::Test {
 protected:
  ServedCache() : model(load_model(data_path("../../models/nano"))) {
    ServingOptions options = small_options();
    options.cache_bytes = int64_t{64} << 20;
    options.hash_unit = kUnit;
    options.scheduler.token_budget = 256;
    auto made = ServingEngine::create(*model, options);
    TANDEM_CHECK(made.is_ok(), made.status().message());
    engine = std::move(made).value();
    ApiOptions api;
    api.served_names = {"nano"};
    auto created = ApiServer::create(*engine, *model->tokenizer().value(), api, nullptr, {}, {});
    TANDEM_CHECK(created.is_ok(), created.status().message());
    server.emplace(std::move(created).value());
  }

  ordered_json answer(const std::string& method, const std::string& path, const std::string& body) {
    const auto exchange = std::make_shared<FakeExchange>(HttpRequest{method, path, "", {}, body});
    server->handle(exchange);
    exchange->run_tasks();
    while (!exchange->has_ended() && engine->step()) exchange->run_tasks();
    exchange->run_tasks();
    EXPECT_TRUE(exchange->is_answered());
    EXPECT_EQ(exchange->response().status, 200) << exchange->response().body;
    return ordered_json::parse(exchange->response().body);
  }
  ordered_json chat(const ordered_json& messages) {
    const ordered_json body = {{"messages", messages}, {"max_tokens", 1}, {"temperature", 0}};
    return answer("POST", "/v1/chat/completions", body.dump());
  }
  ordered_json explanation(const ordered_json& reply) {
    return answer("GET", "/v1/cache/explain/" + reply["id"].get<std::string>(), "");
  }

  static constexpr int64_t kUnit = 128;
  const std::unique_ptr<LoadedModel> model;
  std::unique_ptr<ServingEngine> engine;
  std::optional<ApiServer> server;
};

std::string many_words(std::string_view word, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += cat(word, " ", i, ". ");
  return text;
}

// Field report 31: a client that strips reasoning. The explanation names the message where the prompt parts from the
// cached one, and all whole units up to the end of the turn before it are reused.
TEST_F(ServedCache, Report31StrippedReasoningReusesTheTurnBefore) {
  ordered_json messages = ordered_json::array();
  messages.push_back({{"role", "system"}, {"content", many_words("You keep rule number", 40)}});
  messages.push_back({{"role", "user"}, {"content", many_words("Remember word", 40)}});
  const ordered_json first = chat(messages);
  const int64_t first_turn = first["usage"]["prompt_tokens"];  // without the opened channel: ends with the user's turn
  ASSERT_GT(first_turn, 3 * kUnit);

  messages.push_back({{"role", "assistant"},
                      {"reasoning_content", many_words("I repeat word", 20)},
                      {"content", many_words("You said word", 20)}});
  messages.push_back({{"role", "user"}, {"content", many_words("Now say word", 60)}});
  const ordered_json second = chat(messages);
  const int64_t of_turn = second["usage"]["prompt_tokens_details"]["cached_tokens"];
  EXPECT_EQ(of_turn, first_turn / kUnit * kUnit);

  messages[2].erase("reasoning_content");
  const ordered_json stripped = chat(messages);
  const ordered_json report = explanation(stripped);
  ASSERT_TRUE(report["divergence"].is_object()) << report;
  EXPECT_EQ(report["divergence"]["place"]["field"], "messages[2].reasoning_content");
  EXPECT_GE(report["divergence"]["position"], first_turn);
  EXPECT_EQ(report["edit"]["cause"], "stripped_reasoning");
  EXPECT_EQ(report["hit_tokens"], of_turn) << "up to the turn's end, in whole units";
  EXPECT_EQ(stripped["usage"]["prompt_tokens_details"]["cached_tokens"], of_turn);
  EXPECT_GT(report["edit"]["would_hit_tokens"], of_turn) << report;
}

}  // namespace
}  // namespace tandem::test
