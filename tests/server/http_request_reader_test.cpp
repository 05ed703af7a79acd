// Messages cut at every byte, many in a row, and targets taken apart. What a broken message is answered is in
// http_hostile_test.cpp.
#include "server/http_request_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/cat.h"
#include "server/http_message.h"
#include "server/http_target.h"
#include "support/effort.h"

namespace tandem {
namespace {

const std::string kChunked =
    "POST /v1/x?a=1 HTTP/1.1\r\nHost: t\r\nX-Twice: 1\r\nx-twice: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
    "3\r\nabc\r\n00A;x=\"y\"\r\n0123456789\r\n0\r\nAuthorization: trailer\r\n\r\n";
const std::string kEmptyChunked = "PUT /e HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
const std::string kLength = "POST /l HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello";
const std::string kGet = "GET / HTTP/1.1\r\nHost: t\r\n\r\n";

void expect_chunked(HttpRequestReader& reader) {
  ASSERT_EQ(reader.state(), HttpReadState::kDone);
  const HttpRequest request = reader.take_request();
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.path, "/v1/x");
  EXPECT_EQ(request.query, "a=1");
  EXPECT_EQ(request.body, "abc0123456789");
  EXPECT_EQ(request.header("x-twice"), "1");
  EXPECT_EQ(request.headers.size(), 4u);
  EXPECT_EQ(request.header("authorization"), std::nullopt) << "a trailer adds no header";
}

TEST(HttpRequestReader, CutAnywhereInTwo) {
  for (size_t cut = 0; cut <= kChunked.size(); ++cut) {
    HttpRequestReader reader({});
    std::string input = kChunked.substr(0, cut);
    reader.feed(input);
    input += kChunked.substr(cut);
    reader.feed(input);
    SCOPED_TRACE(cut);
    expect_chunked(reader);
    EXPECT_EQ(input, "");
  }
}

TEST(HttpRequestReader, ByteByByte) {
  for (const std::string& message : {kChunked, kEmptyChunked, kLength, kGet}) {
    HttpRequestReader reader({});
    std::string input;
    for (size_t i = 0; i < message.size(); ++i) {
      input.push_back(message[i]);
      const HttpReadState state = reader.feed(input);
      EXPECT_EQ(state == HttpReadState::kDone, i + 1 == message.size()) << message << " at " << i;
      EXPECT_NE(state, HttpReadState::kRefused);
    }
    EXPECT_EQ(input, "");
  }
}

TEST(HttpRequestReader, OneAfterAnotherInPiecesOfAnySize) {
  std::mt19937 random(7);
  const std::vector<std::string> messages = {kChunked, kEmptyChunked, kLength, "\r\n" + kGet};
  for (int64_t round = 0; round < test::effort(500); ++round) {
    std::string all;
    std::vector<size_t> order;
    for (int i = 0; i < 6; ++i) {
      order.push_back(random() % messages.size());
      all += messages[order.back()];
    }
    std::string input;
    size_t given = 0;
    for (const size_t index : order) {
      HttpRequestReader reader({});
      while (reader.feed(input) != HttpReadState::kDone) {
        ASSERT_NE(reader.state(), HttpReadState::kRefused) << reader.refusal().body;
        ASSERT_LT(given, all.size());
        const size_t size = std::min<size_t>(1 + random() % 60, all.size() - given);
        input += all.substr(given, size);
        given += size;
      }
      const size_t bodies[] = {13, 0, 5, 0};
      EXPECT_EQ(reader.take_request().body.size(), bodies[index]);
    }
    EXPECT_EQ(input, "");
    EXPECT_EQ(given, all.size());
  }
}

TEST(HttpRequestReader, RandomDamageNeverHarms) {
  std::mt19937 random(11);
  for (int64_t round = 0; round < test::effort(20000); ++round) {
    std::string message = round % 2 == 0 ? kChunked : kLength;
    for (int i = 0; i < 3; ++i) message[random() % message.size()] = static_cast<char>(random() % 256);
    HttpRequestReader reader({1024, 4096});
    std::string input;
    for (size_t at = 0; at < message.size() && reader.state() < HttpReadState::kDone;) {
      const size_t size = 1 + random() % 40;
      input += message.substr(at, size);
      at += size;
      reader.feed(input);
    }
    if (reader.state() == HttpReadState::kRefused) {
      EXPECT_GE(reader.refusal().status, 400);
      EXPECT_LT(reader.refusal().status, 500);
    } else if (reader.state() == HttpReadState::kDone) {
      EXPECT_LE(reader.take_request().body.size(), 4096u);
    }
  }
}

TEST(HttpRequestReader, ExpectationIsTakenOnce) {
  HttpRequestReader reader({});
  std::string input = "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nExpect: 100-Continue\r\n\r\n";
  EXPECT_EQ(reader.feed(input), HttpReadState::kBody);
  EXPECT_TRUE(reader.take_expects_continue());
  EXPECT_FALSE(reader.take_expects_continue());
  input = "ok";
  EXPECT_EQ(reader.feed(input), HttpReadState::kDone);
}

TEST(HttpTarget, PartsAreDecodedAndChecked) {
  const auto plain = parse_http_target("/v1/models/a%2Fb%20%C3%A9?x=%20&y#frag");
  ASSERT_TRUE(plain.is_ok());
  EXPECT_EQ(plain.value().path, "/v1/models/a/b \xC3\xA9");
  EXPECT_EQ(plain.value().query, "x=%20&y");
  EXPECT_EQ(parse_http_target("HTTP://host:80/p?q").value().path, "/p");
  EXPECT_EQ(parse_http_target("http://host?q").value().path, "/");
  EXPECT_EQ(parse_http_target("http://host?q").value().query, "q");
  EXPECT_EQ(parse_http_target("http://host").value().path, "/");
  EXPECT_EQ(parse_http_target("*").value().path, "*");
  for (const char* broken :
       {"", "x", "?q", "/%", "/%2", "/%2g", "/%80", "/%c0%af", "/%0a", "/%7F", "/?%ff", "ftp://h/"}) {
    EXPECT_EQ(parse_http_target(broken).status().code(), StatusCode::kInvalidArgument) << broken;
  }
}

TEST(HttpMessage, NothingFromOutsideAddsHeaders) {
  HttpResponse response;
  response.headers = {{"X-Good", "1"}, {"X-Bad", "1\r\nSet-Cookie: a=b"}, {"X Bad", "1"}, {"Content-Length", "7"}};
  HttpHeadStyle style;
  style.body_bytes = 3;
  const std::string head = http_head(response, style);
  EXPECT_THAT(head, testing::HasSubstr("X-Good: 1\r\n"));
  EXPECT_THAT(head, testing::Not(testing::HasSubstr("Bad")));
  EXPECT_THAT(head, testing::Not(testing::HasSubstr("Cookie")));
  EXPECT_THAT(head, testing::HasSubstr("Content-Length: 3\r\n"));
  EXPECT_THAT(head, testing::Not(testing::HasSubstr("Content-Length: 7\r\n")));
  EXPECT_EQ(http_error(400, "a \"b\" \\ \n").body,
            "{\"error\":{\"message\":\"a \\\"b\\\" \\\\ \\n\",\"type\":\"invalid_request_error\",\"param\":null,"
            "\"code\":null}}");
}

}  // namespace
}  // namespace tandem
