// The server with well-behaved clients: framing, keep-alive, streams to the byte, HEAD, CORS, drain.
#include "server/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "base/cat.h"
#include "server/http_test_client.h"

namespace tandem {
namespace {

using test::eventually;
using test::get_request;
using test::post_request;
using test::RawClient;
using test::start_server;
using test::test_options;

HttpResponse text_response(std::string body) {
  HttpResponse response;
  response.content_type = "text/plain";
  response.body = std::move(body);
  return response;
}

// Answers with what it was asked.
void echo(const std::shared_ptr<HttpExchange>& exchange) {
  const HttpRequest& request = exchange->request();
  exchange->respond(text_response(cat(request.method, " ", request.path, "?", request.query, "\n", request.body)));
}

// Hands exchanges to the test's thread.
class Held {
 public:
  HttpHandler handler() {
    return [this](std::shared_ptr<HttpExchange> exchange) {
      const std::lock_guard lock(mu_);
      exchanges_.push_back(std::move(exchange));
    };
  }
  std::shared_ptr<HttpExchange> take() {
    std::shared_ptr<HttpExchange> out;
    EXPECT_TRUE(eventually([&] {
      const std::lock_guard lock(mu_);
      if (exchanges_.empty()) return false;
      out = std::move(exchanges_.front());
      exchanges_.erase(exchanges_.begin());
      return true;
    })) << "no request arrived";
    return out;
  }

 private:
  std::mutex mu_;
  std::vector<std::shared_ptr<HttpExchange>> exchanges_;
};

HttpResponse event_stream() {
  HttpResponse response;
  response.content_type = "text/event-stream; charset=utf-8";
  response.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  return response;
}

TEST(HttpServer, AnswersAndKeepsTheConnection) {
  auto server = start_server(test_options(), echo);
  RawClient client(server->port());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.send(get_request(cat("/a%20b?x=", i))));
    const auto response = client.read_response();
    EXPECT_TRUE(response.is_complete);
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, cat("GET /a b?x=", i, "\n"));
    EXPECT_EQ(response.headers.at("content-type"), "text/plain");
    EXPECT_EQ(response.headers.count("connection"), 0u);
    EXPECT_FALSE(response.headers.at("x-request-id").empty());
  }
  ASSERT_TRUE(client.send(post_request("/p", "hello", "Connection: close\r\n")));
  const auto last = client.read_response();
  EXPECT_EQ(last.body, "POST /p?\nhello");
  EXPECT_EQ(last.headers.at("connection"), "close");
  EXPECT_TRUE(client.is_closed_by_server());
  EXPECT_EQ(server->stats().accepted, 1);
}

TEST(HttpServer, StreamIsTheseBytes) {
  Held held;
  auto server = start_server(test_options(), held.handler());
  RawClient client(server->port());
  ASSERT_TRUE(client.send(post_request("/v1/chat/completions", "{}")));
  auto exchange = held.take();
  exchange->begin_stream(event_stream());
  const std::string head = client.read_until("\r\n\r\n");
  EXPECT_THAT(head, testing::HasSubstr("Content-Type: text/event-stream; charset=utf-8\r\n"));
  EXPECT_THAT(head, testing::HasSubstr("Transfer-Encoding: chunked\r\n"));
  EXPECT_THAT(head, testing::HasSubstr("Cache-Control: no-cache\r\n"));
  EXPECT_THAT(head, testing::HasSubstr("X-Accel-Buffering: no\r\n"));
  EXPECT_THAT(head, testing::Not(testing::HasSubstr("Content-Length")));
  // Each frame is there before the next is written.
  EXPECT_TRUE(exchange->write("data: {\"a\":1}\n\n"));
  EXPECT_EQ(client.read_until("\n\n\r\n"), "f\r\ndata: {\"a\":1}\n\n\r\n");
  EXPECT_TRUE(exchange->write("data: [DONE]\n\n"));
  EXPECT_EQ(client.read_until("\n\n\r\n"), "e\r\ndata: [DONE]\n\n\r\n");
  exchange->end(true);
  EXPECT_EQ(client.read_until("\r\n\r\n"), "0\r\n\r\n");
  // And the connection serves again.
  exchange = nullptr;
  ASSERT_TRUE(client.send(get_request("/again")));
  held.take()->respond(text_response("yes"));
  EXPECT_EQ(client.read_response().body, "yes");
}

TEST(HttpServer, EveryWriteIsOneChunk) {
  auto server = start_server(test_options(), [](const std::shared_ptr<HttpExchange>& exchange) {
    HttpResponse response = event_stream();
    response.body = "first";
    exchange->begin_stream(std::move(response));
    for (int i = 0; i < 100; ++i) exchange->write(cat("frame ", i));
    exchange->write("");  // no chunk: an empty one would end the stream
    exchange->write("last");
    exchange->end(true);
  });
  RawClient client(server->port());
  ASSERT_TRUE(client.send(get_request("/")));
  const auto response = client.read_response();
  ASSERT_TRUE(response.is_complete);
  ASSERT_EQ(response.chunks.size(), 102u);
  EXPECT_EQ(response.chunks[0], "first");
  EXPECT_EQ(response.chunks[57], "frame 56");
  EXPECT_EQ(response.chunks[101], "last");
}

TEST(HttpServer, AnUnfinishedStreamEndsWithoutItsLastChunk) {
  auto server = start_server(test_options(), [](const std::shared_ptr<HttpExchange>& exchange) {
    exchange->begin_stream(event_stream());
    exchange->write("data: {\"error\":{}}\n\n");
    exchange->end(false);
  });
  RawClient client(server->port());
  ASSERT_TRUE(client.send(get_request("/")));
  client.read_until("\r\n\r\n");
  EXPECT_EQ(client.read_to_end(), "14\r\ndata: {\"error\":{}}\n\n\r\n");
}

TEST(HttpServer, WhatAHandlerDropsIsAnsweredFor) {
  auto server = start_server(test_options(), [](const std::shared_ptr<HttpExchange>& exchange) {
    if (exchange->request().path == "/throw") throw std::runtime_error("a library's exception");
    if (exchange->request().path == "/stream") exchange->begin_stream(event_stream());
  });
  for (const std::string path : {"/drop", "/throw"}) {
    RawClient client(server->port());
    ASSERT_TRUE(client.send(get_request(path)));
    const auto response = client.read_response();
    EXPECT_EQ(response.status, 500) << path;
    EXPECT_THAT(response.body, testing::HasSubstr("\"type\":\"server_error\""));
    EXPECT_THAT(response.body, testing::Not(testing::HasSubstr("exception")));
  }
  RawClient client(server->port());
  ASSERT_TRUE(client.send(get_request("/stream")));
  client.read_until("\r\n\r\n");
  EXPECT_TRUE(client.is_closed_by_server()) << "a stream without an end closes the connection";
}

TEST(HttpServer, PipelinedRequestsAreAnsweredInOrder) {
  Held held;
  auto server = start_server(test_options(), held.handler());
  RawClient client(server->port());
  ASSERT_TRUE(client.send(get_request("/1") + post_request("/2", "body") + get_request("/3")));
  for (const std::string path : {"/1", "/2", "/3"}) {
    auto exchange = held.take();
    ASSERT_NE(exchange, nullptr);
    EXPECT_EQ(exchange->request().path, path);
    EXPECT_EQ(server->stats().exchanges, 1) << "one at a time";
    exchange->respond(text_response(path));
    EXPECT_EQ(client.read_response().body, path);
  }
}

TEST(HttpServer, HeadHasTheHeadOfGet) {
  auto server = start_server(test_options(), echo);
  RawClient client(server->port());
  ASSERT_TRUE(client.send("HEAD /x HTTP/1.1\r\nHost: test\r\n\r\n" + get_request("/y")));
  const auto head = client.read_response(false);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), cat(std::string{"GET /x?\n"}.size()));
  EXPECT_EQ(client.read_response().body, "GET /y?\n") << "no body between";
}

TEST(HttpServer, CorsPreflightNeedsNoHandler) {
  HttpServerOptions options = test_options();
  options.cors_origin = "https://chat.example";
  auto server = start_server(options, [](const std::shared_ptr<HttpExchange>& exchange) { echo(exchange); });
  RawClient client(server->port());
  ASSERT_TRUE(client.send(
      "OPTIONS /any HTTP/1.1\r\nHost: test\r\nAccess-Control-Request-Headers: x-stainless-os, bad header\r\n\r\n"));
  const auto response = client.read_response();
  EXPECT_EQ(response.status, 204);
  EXPECT_EQ(response.headers.count("content-length"), 0u);
  EXPECT_EQ(response.headers.at("access-control-allow-origin"), "https://chat.example");
  EXPECT_EQ(response.headers.at("vary"), "Origin");
  EXPECT_EQ(response.headers.at("access-control-allow-headers"),
            "authorization, content-type, x-api-key, anthropic-version, x-stainless-os");
  ASSERT_TRUE(client.send(get_request("/")));
  EXPECT_EQ(client.read_response().headers.at("access-control-allow-origin"), "https://chat.example");
}

TEST(HttpServer, OldClientsGetAStreamThatEndsByClosing) {
  auto server = start_server(test_options(), [](const std::shared_ptr<HttpExchange>& exchange) {
    if (exchange->request().path == "/whole") return echo(exchange);
    exchange->begin_stream(event_stream());
    exchange->write("data: 1\n\n");
    exchange->end(true);
  });
  RawClient client(server->port());
  ASSERT_TRUE(client.send("GET /whole HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
  EXPECT_EQ(client.read_response().headers.at("connection"), "keep-alive");
  ASSERT_TRUE(client.send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
  const auto response = client.read_response();
  EXPECT_EQ(response.headers.count("transfer-encoding"), 0u);
  EXPECT_EQ(response.headers.at("connection"), "close");
  EXPECT_EQ(response.body, "data: 1\n\n");
}

TEST(HttpServer, BodiesArriveWholeHoweverTheyAreSent) {
  auto server = start_server(test_options(), echo);
  RawClient client(server->port());
  ASSERT_TRUE(client.send("POST /c HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nWi"));
  ASSERT_TRUE(client.send("ki\r\n5;name=value\r\npedia\r\n0\r\nX-Trailer: 1\r\n\r\n"));
  EXPECT_EQ(client.read_response().body, "POST /c?\nWikipedia");
  ASSERT_TRUE(client.send("POST /e HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"));
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  ASSERT_TRUE(client.send("body"));
  EXPECT_EQ(client.read_response().body, "POST /e?\nbody");
  const std::string large(3 << 20, 'x');
  ASSERT_TRUE(client.send(post_request("/l", large)));
  EXPECT_EQ(client.read_response().body, "POST /l?\n" + large);
}

TEST(HttpServer, PostedTasksRunInOrder) {
  std::promise<std::string> order;
  HttpServerOptions options = test_options();
  options.worker_threads = 4;
  auto server = start_server(options, [&](const std::shared_ptr<HttpExchange>& exchange) {
    auto seen = std::make_shared<std::string>();
    for (char c = 'a'; c <= 'z'; ++c) exchange->post([seen, c] { seen->push_back(c); });
    exchange->post([&order, seen, exchange] {
      exchange->respond({});
      order.set_value(*seen);
    });
  });
  RawClient client(server->port());
  ASSERT_TRUE(client.send(get_request("/")));
  EXPECT_EQ(client.read_response().status, 200);
  EXPECT_EQ(order.get_future().get(), "abcdefghijklmnopqrstuvwxyz");
}

TEST(HttpServer, DrainLetsRunningExchangesFinish) {
  Held held;
  auto server = start_server(test_options(), held.handler());
  RawClient idle(server->port());
  ASSERT_TRUE(idle.send(get_request("/warm")));
  held.take()->respond({});
  EXPECT_EQ(idle.read_response().status, 200);
  RawClient client(server->port());
  ASSERT_TRUE(client.send(get_request("/")));
  auto exchange = held.take();
  exchange->begin_stream(event_stream());
  auto cut = std::async(std::launch::async, [&] { return server->drain(60); });
  EXPECT_TRUE(idle.is_closed_by_server());
  EXPECT_TRUE(eventually([&] { return !RawClient(server->port()).is_connected(); }));
  EXPECT_TRUE(exchange->write("data: still\n\n"));
  exchange->end(true);
  const auto response = client.read_response();
  EXPECT_TRUE(response.is_complete);
  EXPECT_EQ(response.body, "data: still\n\n");
  client.close();
  EXPECT_EQ(cut.get(), 0);
}

TEST(HttpServer, DrainCutsWhatDoesNotFinish) {
  Held held;
  auto server = start_server(test_options(), held.handler());
  RawClient client(server->port());
  ASSERT_TRUE(client.send(get_request("/")));
  auto exchange = held.take();
  std::promise<void> gone;
  exchange->on_disconnect([&] { gone.set_value(); });
  exchange->begin_stream(event_stream());
  EXPECT_EQ(server->drain(0.05), 1);
  gone.get_future().get();
  EXPECT_FALSE(exchange->write("data: too late\n\n"));
  // An exchange outlives its server.
  server = nullptr;
  EXPECT_FALSE(exchange->write("data: far too late\n\n"));
  exchange->post([] { FAIL() << "no worker is left to run this"; });
  exchange->end(true);
}

TEST(HttpServer, LogsWhatHappenedWithoutQueryOrBody) {
  std::mutex mu;
  std::vector<HttpLogEntry> entries;
  HttpServerHooks hooks;
  hooks.on_exchange = [&](const HttpLogEntry& entry) {
    const std::lock_guard lock(mu);
    entries.push_back(entry);
  };
  auto server = start_server(test_options(), echo, hooks);
  RawClient client(server->port());
  const std::string request = post_request("/p?key=secret", "secret");
  ASSERT_TRUE(client.send(request));
  const auto response = client.read_response();
  client.close();
  ASSERT_TRUE(eventually([&] {
    const std::lock_guard lock(mu);
    return !entries.empty();
  }));
  EXPECT_EQ(entries[0].request_id, response.headers.at("x-request-id"));
  EXPECT_EQ(entries[0].method, "POST");
  EXPECT_EQ(entries[0].path, "/p");
  EXPECT_EQ(entries[0].status, 200);
  EXPECT_EQ(entries[0].received_bytes, static_cast<int64_t>(request.size()));
  EXPECT_GT(entries[0].sent_bytes, static_cast<int64_t>(response.body.size()));
  EXPECT_FALSE(entries[0].is_client_gone);
  EXPECT_THAT(entries[0].peer, testing::StartsWith("127.0.0.1:"));
}

TEST(HttpServer, AddressesAreNumericAndProblemsNamed) {
  HttpServerOptions options = test_options();
  options.host = "::1";
  auto six = HttpServer::start(options, echo);
  if (six.is_ok()) {
    EXPECT_EQ(six.value()->url(), cat("http://[::1]:", six.value()->port()));
    EXPECT_TRUE(six.value()->is_loopback());
  } else {
    EXPECT_EQ(six.status().code(), StatusCode::kIo) << "a machine without IPv6 says so";
  }
  options.host = "localhost";
  auto server = start_server(options, echo);
  EXPECT_EQ(server->url(), cat("http://127.0.0.1:", server->port()));
  options.host = "example.com";
  EXPECT_THAT(HttpServer::start(options, echo).status().message(), testing::HasSubstr("\"example.com\""));
  options = test_options();
  options.port = server->port();
  const auto taken = HttpServer::start(options, echo);
  EXPECT_EQ(taken.status().code(), StatusCode::kIo);
  EXPECT_THAT(taken.status().message(), testing::HasSubstr(cat("port ", server->port())));
  options = test_options();
  options.header_seconds = 0;
  EXPECT_EQ(HttpServer::start(options, echo).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem
