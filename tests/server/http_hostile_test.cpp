// The server with clients that are broken, slow or hostile: each gets its 4xx or is closed, its exchange is cancelled
// once, and nobody else waits. Time-outs are short here; no test asserts how long anything took.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/cat.h"
#include "server/http_server.h"
#include "server/http_test_client.h"

namespace tandem {
namespace {

using test::eventually;
using test::get_request;
using test::post_request;
using test::RawClient;
using test::start_server;
using test::test_options;

void answer_ok(const std::shared_ptr<HttpExchange>& exchange) { exchange->respond({}); }

// Sends `bytes` on a connection of its own and expects an error with this status, then the end.
void expect_refused(const HttpServer& server, const std::string& bytes, int status) {
  RawClient client(server.port());
  client.send(bytes);
  auto response = client.read_response();
  const std::string shown = bytes.substr(0, 120);
  EXPECT_EQ(response.status, status) << shown;
  EXPECT_TRUE(response.is_complete) << shown;
  EXPECT_THAT(response.body, testing::StartsWith("{\"error\":{\"message\":\"")) << shown;
  EXPECT_THAT(response.body, testing::HasSubstr("\"param\":null")) << shown;
  EXPECT_EQ(response.headers["connection"], "close") << shown;
  EXPECT_TRUE(client.is_closed_by_server()) << shown;
}

std::string post_with(const std::string& headers, const std::string& body = "") {
  return cat("POST / HTTP/1.1\r\nHost: t\r\n", headers, "\r\n", body);
}

TEST(HttpHostile, BrokenMessages) {
  std::atomic<int> handled = 0;
  auto server = start_server(test_options(), [&](const std::shared_ptr<HttpExchange>& exchange) {
    ++handled;
    answer_ok(exchange);
  });
  const std::vector<std::pair<std::string, int>> cases = {
      {"nonsense\r\n\r\n", 400},
      {"GET / HTTP/3.0\r\nHost: t\r\n\r\n", 400},
      {"GET  / HTTP/1.1\r\nHost: t\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},  // no Host
      {"GET / HTTP/1.1\nHost: t\n\n", 400},
      {"GET /\x01 HTTP/1.1\r\nHost: t\r\n\r\n", 400},
      {"GET x HTTP/1.1\r\nHost: t\r\n\r\n", 400},
      {"GET * HTTP/1.1\r\nHost: t\r\n\r\n", 400},
      {"GET /%4 HTTP/1.1\r\nHost: t\r\n\r\n", 400},
      {"GET /%zz HTTP/1.1\r\nHost: t\r\n\r\n", 400},
      {"GET /%ff%fe HTTP/1.1\r\nHost: t\r\n\r\n", 400},
      {"GET /%00 HTTP/1.1\r\nHost: t\r\n\r\n", 400},
      {"GET /\xff HTTP/1.1\r\nHost: t\r\n\r\n", 400},
      {"GET /?q=%c3 HTTP/1.1\r\nHost: t\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: t\r\nBad Name: 1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost : t\r\n\r\n", 400},
      {"TRACE / HTTP/1.1\r\nHost: t\r\n\r\n", 405},
      {"CONNECT a:1 HTTP/1.1\r\nHost: t\r\n\r\n", 405},
      {"BREW /pot HTTP/1.1\r\nHost: t\r\n\r\n", 405},
      {"POST / HTTP/1.1\r\nHost: t\r\n\r\n", 411},
      {post_with("Content-Length: -1\r\n"), 400},
      {post_with("Content-Length: +5\r\n", "hello"), 400},
      {post_with("Content-Length: 5x\r\n", "hello"), 400},
      {post_with("Content-Length: 18446744073709551616\r\n"), 400},
      {post_with("Content-Length: 5\r\nContent-Length: 6\r\n", "hello!"), 400},
      {post_with("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 400},
      {post_with("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n"), 400},
      {post_with("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), 400},
      {post_with("Transfer-Encoding: identity\r\n"), 400},
      {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {post_with("Content-Encoding: gzip\r\nContent-Length: 5\r\n", "hello"), 415},
      {post_with("Expect: a-miracle\r\nContent-Length: 5\r\n", "hello"), 417},
      {post_with("Transfer-Encoding: chunked\r\n", "xyz\r\nhello\r\n"), 400},
      {post_with("Transfer-Encoding: chunked\r\n", "5\r\nhello!\r\n0\r\n\r\n"), 400},
      {post_with("Transfer-Encoding: chunked\r\n", "-5\r\nhello\r\n0\r\n\r\n"), 400},
      {post_with("Transfer-Encoding: chunked\r\n", "FFFFFFFFFFFFFFFFF\r\nhello"), 400},
      {post_with("Transfer-Encoding: chunked\r\n", "5;" + std::string(40000, 'a')), 400},
  };
  for (const auto& [bytes, status] : cases) expect_refused(*server, bytes, status);
  EXPECT_EQ(handled, 0) << "no broken message reaches a handler";
}

TEST(HttpHostile, LimitsOfHeaderAndBody) {
  HttpServerOptions options = test_options();
  options.max_body_bytes = 1000;
  auto server = start_server(options, answer_ok);
  const std::string too_long(70000, 'a');
  expect_refused(*server, cat("GET / HTTP/1.1\r\nHost: t\r\nX: ", too_long, "\r\n\r\n"), 431);
  expect_refused(*server, cat("GET /", too_long, " HTTP/1.1\r\nHost: t\r\n\r\n"), 431);
  expect_refused(*server, too_long, 431);
  // By the length alone, with nothing of the body sent, and no "100 Continue" before.
  expect_refused(*server, post_with("Content-Length: 1001\r\nExpect: 100-continue\r\n"), 413);
  expect_refused(*server, post_with("Transfer-Encoding: chunked\r\n", "3e9\r\n"), 413);
  const std::string piece = cat("1f4\r\n", std::string(500, 'b'), "\r\n");
  expect_refused(*server, post_with("Transfer-Encoding: chunked\r\n", piece + piece + "1\r\n"), 413);
  // At the limit is not over it.
  RawClient client(server->port());
  ASSERT_TRUE(client.send(post_request("/", std::string(1000, 'c'))));
  EXPECT_EQ(client.read_response().status, 200);
  ASSERT_TRUE(client.send(post_with("Transfer-Encoding: chunked\r\n", piece + piece + "0\r\n\r\n")));
  EXPECT_EQ(client.read_response().status, 200);
}

TEST(HttpHostile, TheRefusalIsReadEvenWhenTheBodyKeepsComing) {
  HttpServerOptions options = test_options();
  options.max_body_bytes = 1000;
  auto server = start_server(options, answer_ok);
  RawClient client(server->port());
  client.send(post_with("Content-Length: 4000000\r\n", std::string(4000000, 'x')));
  EXPECT_EQ(client.read_response().status, 413);
}

TEST(HttpHostile, CutRequests) {
  auto server = start_server(test_options(), answer_ok);
  for (const std::string& bytes :
       {std::string{"GE"}, std::string{"GET / HTTP/1.1\r\nHost: t\r\n"}, post_with("Content-Length: 10\r\n", "half"),
        post_with("Transfer-Encoding: chunked\r\n", "5\r\nhel")}) {
    RawClient client(server->port());
    ASSERT_TRUE(client.send(bytes));
    client.close_sending();
    EXPECT_EQ(client.read_response().status, 400) << bytes;
    EXPECT_TRUE(client.is_closed_by_server());
  }
  RawClient silent(server->port());
  silent.close_sending();
  EXPECT_TRUE(silent.is_closed_by_server()) << "nothing asked, nothing answered";
}

TEST(HttpHostile, SlowRequestsEnd) {
  HttpServerOptions options = test_options();
  options.header_seconds = 0.05;
  options.body_window_seconds = 0.05;
  options.idle_seconds = 0.05;
  auto server = start_server(options, answer_ok);
  RawClient silent(server->port());
  EXPECT_TRUE(silent.is_closed_by_server());
  expect_refused(*server, "GET / HTTP/1.1\r\nHost: t\r\nX: slo", 408);
  expect_refused(*server, post_with("Content-Length: 10\r\n", "slow"), 408);
  expect_refused(*server, post_with("Transfer-Encoding: chunked\r\n", "5\r\nslow"), 408);
  RawClient idle(server->port());
  ASSERT_TRUE(idle.send(get_request("/")));
  EXPECT_EQ(idle.read_response().status, 200);
  EXPECT_TRUE(idle.is_closed_by_server());
}

TEST(HttpHostile, ADribbledHeaderIsBoundedByItsFirstByte) {
  HttpServerOptions options = test_options();
  options.header_seconds = 0.1;
  options.linger_seconds = 0.05;
  auto server = start_server(options, answer_ok);
  RawClient client(server->port());
  ASSERT_TRUE(client.send("GET / HTTP/1.1\r\nHost: t\r\nX: "));
  // Each byte is progress, and still the header must be complete in time.
  bool is_taken = true;
  for (int i = 0; i < 20000 && is_taken; ++i) {
    is_taken = client.send("a");
    test::sleep_a_little();
  }
  EXPECT_FALSE(is_taken) << "the server has closed";
}

TEST(HttpHostile, OthersDoNotStutterWhileOneDribbles) {
  HttpServerOptions options = test_options();
  options.worker_threads = 1;
  auto server = start_server(options, [](const std::shared_ptr<HttpExchange>& exchange) {
    exchange->begin_stream({});
    for (int i = 0; i < 50; ++i) exchange->write(cat("data: ", i, "\n\n"));
    exchange->end(true);
  });
  std::vector<std::unique_ptr<RawClient>> dribblers;
  for (int i = 0; i < 50; ++i) {
    dribblers.push_back(std::make_unique<RawClient>(server->port()));
    ASSERT_TRUE(dribblers.back()->send(post_with("Content-Length: 1000\r\n", "x")));
  }
  RawClient client(server->port());
  for (int round = 0; round < 20; ++round) {
    for (auto& dribbler : dribblers) ASSERT_TRUE(dribbler->send("x"));
    ASSERT_TRUE(client.send(get_request("/")));
    const auto response = client.read_response();
    ASSERT_TRUE(response.is_complete);
    EXPECT_EQ(response.chunks.size(), 50u);
  }
  EXPECT_EQ(server->stats().exchanges, 0) << "no dribbler is finished";
  EXPECT_EQ(server->stats().connections, 51);
}

// Starts one exchange, which stays open, and counts its disconnects.
struct OpenExchange {
  explicit OpenExchange(HttpServerOptions options, bool is_stream, int receive_buffer_bytes = 0) {
    server = start_server(std::move(options), [this, is_stream](const std::shared_ptr<HttpExchange>& taken) {
      taken->on_disconnect([this] { ++disconnects; });
      if (is_stream) taken->begin_stream({});
      exchange = taken;
      is_open = true;
    });
    client = std::make_unique<RawClient>(server->port(), receive_buffer_bytes);
    EXPECT_TRUE(client->send(post_request("/", "{}")));
    EXPECT_TRUE(eventually([this] { return is_open.load(); }));
  }
  std::atomic<int> disconnects = 0;
  std::atomic<bool> is_open = false;
  std::shared_ptr<HttpExchange> exchange;
  std::unique_ptr<HttpServer> server;
  std::unique_ptr<RawClient> client;
};

TEST(HttpHostile, ADisconnectIsHeardOnceInEveryPhase) {
  for (const bool is_stream : {false, true}) {
    for (const bool is_reset : {false, true}) {
      OpenExchange open(test_options(), is_stream);
      is_reset ? open.client->reset() : open.client->close();
      EXPECT_TRUE(eventually([&] { return open.disconnects == 1; })) << is_stream << is_reset;
      if (is_stream) {
        EXPECT_FALSE(open.exchange->write("data: 1\n\n"));
        open.exchange->end(false);
      } else {
        open.exchange->respond({});
      }
      // Who asks late is told at once, and nobody twice.
      open.exchange = nullptr;
      EXPECT_TRUE(eventually([&] { return open.server->stats().connections == 0; }));
      EXPECT_EQ(open.disconnects, 1);
    }
  }
}

TEST(HttpHostile, ACallbackSetAfterTheDisconnectRunsAtOnce) {
  OpenExchange open(test_options(), true);
  open.client->close();
  ASSERT_TRUE(eventually([&] { return open.disconnects == 1; }));
  open.exchange->on_disconnect([&] { open.disconnects += 10; });
  EXPECT_TRUE(eventually([&] { return open.disconnects == 11; }));
  open.exchange->end(false);
  open.exchange->on_disconnect([&] { open.disconnects += 100; });
  open.server = nullptr;
  EXPECT_EQ(open.disconnects, 11) << "a finished exchange has nothing to cancel";
}

TEST(HttpHostile, AHalfClosedClientIsCancelledButHearsWhatIsAnswered) {
  OpenExchange open(test_options(), false);
  open.client->close_sending();
  EXPECT_TRUE(eventually([&] { return open.disconnects == 1; }));
  HttpResponse response;
  response.body = "{}";
  open.exchange->respond(response);
  const auto heard = open.client->read_response();
  EXPECT_EQ(heard.body, "{}");
  EXPECT_TRUE(open.client->is_closed_by_server());
  EXPECT_EQ(open.disconnects, 1);
}

TEST(HttpHostile, DisconnectsAreSeenBehindPipelinedBytes) {
  HttpServerOptions options = test_options();
  options.max_header_bytes = 1024;
  OpenExchange open(options, true);
  // More than the server keeps: it stops reading, and still sees the end.
  ASSERT_TRUE(open.client->send(std::string(100000, 'x')));
  open.client->close_sending();
  EXPECT_TRUE(eventually([&] { return open.disconnects == 1; }));
  open.exchange->end(false);
}

TEST(HttpHostile, ASlowReaderIsCutAndItsExchangeCancelled) {
  HttpServerOptions options = test_options();
  options.max_unsent_bytes = 100000;
  options.send_seconds = 3600;  // a write under way ends with its exchange, not with its deadline
  OpenExchange open(options, true, 4096);
  const std::string frame = cat("data: ", std::string(20000, 'y'), "\n\n");
  bool is_taken = true;
  for (int i = 0; i < 10000 && is_taken; ++i) is_taken = open.exchange->write(frame);  // at most 200 MB
  EXPECT_FALSE(is_taken);
  EXPECT_TRUE(eventually([&] { return open.disconnects == 1; }));
  EXPECT_FALSE(open.exchange->write(frame));
  open.exchange->end(true);
  open.exchange = nullptr;
  EXPECT_TRUE(eventually([&] { return open.server->stats().exchanges == 0; }));
  EXPECT_EQ(open.disconnects, 1);
}

TEST(HttpHostile, AReaderThatTakesNothingIsCutInTime) {
  HttpServerOptions options = test_options();
  options.send_seconds = 0.05;
  OpenExchange open(options, false, 4096);
  HttpResponse large;
  large.body.assign(30 << 20, 'z');  // more than the system buffers
  open.exchange->respond(large);
  EXPECT_TRUE(eventually([&] { return open.server->stats().connections == 0; }));
  EXPECT_EQ(open.disconnects, 0) << "the answer was complete";
}

TEST(HttpHostile, TooManyConnectionsHearWhy) {
  HttpServerOptions options = test_options();
  options.max_connections = 2;
  auto server = start_server(options, answer_ok);
  RawClient first(server->port());
  RawClient second(server->port());
  for (RawClient* client : {&first, &second}) {
    ASSERT_TRUE(client->send(get_request("/")));
    EXPECT_EQ(client->read_response().status, 200);
  }
  expect_refused(*server, get_request("/"), 503);
  first.close();
  EXPECT_TRUE(eventually([&] { return server->stats().connections == 1; }));
  RawClient third(server->port());
  ASSERT_TRUE(third.send(get_request("/")));
  EXPECT_EQ(third.read_response().status, 200);
  EXPECT_EQ(server->stats().refused, 1);
}

TEST(HttpHostile, ManyClientsComeAndGoOnSeveralThreads) {
  HttpServerOptions options = test_options();
  options.io_threads = 2;
  options.worker_threads = 3;
  std::atomic<int> open_exchanges = 0;
  auto server = start_server(options, [&](const std::shared_ptr<HttpExchange>& exchange) {
    ++open_exchanges;
    auto is_gone = std::make_shared<std::atomic<bool>>(false);
    exchange->on_disconnect([is_gone] { *is_gone = true; });
    exchange->begin_stream({});
    // A producer of one frame a turn, as an engine is.
    auto step = std::make_shared<std::function<void(int)>>();
    *step = [&open_exchanges, exchange, is_gone, weak = std::weak_ptr(step)](int left) {
      const bool goes_on = left > 0 && !*is_gone && exchange->write("data: x\n\n");
      if (goes_on) {
        exchange->post([self = weak.lock(), left] { (*self)(left - 1); });
      } else {
        exchange->end(left == 0);
        --open_exchanges;
      }
    };
    (*step)(40);
  });
  std::vector<std::thread> threads;
  std::atomic<int> complete = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        RawClient client(server->port());
        client.send(get_request("/"));
        if ((i + t) % 3 == 0) {
          client.read_until("data: x");
          i % 2 == 0 ? client.reset() : client.close();
        } else if (client.read_response().chunks.size() == 40u) {
          ++complete;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(complete, 4 * 25 - 34);
  EXPECT_TRUE(eventually([&] { return open_exchanges == 0 && server->stats().connections == 0; }));
}

}  // namespace
}  // namespace tandem
