// tests/server/fake_exchange.h: an HttpExchange that keeps what it is told; tasks run when the test says so.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/http_exchange.h"

namespace tandem::test {

class FakeExchange : public HttpExchange {
 public:
  explicit FakeExchange(HttpRequest request) : request_(std::move(request)) {}

  const HttpRequest& request() const override { return request_; }
  void respond(HttpResponse response) override {
    EXPECT_FALSE(is_answered()) << "answered twice";
    response_ = std::move(response);
    ended_ = true;
  }
  void begin_stream(HttpResponse response) override {
    EXPECT_FALSE(is_answered()) << "answered twice";
    bytes_ = response.body;
    response_ = std::move(response);
    streamed_ = true;
  }
  bool write(std::string data) override {
    EXPECT_TRUE(streamed_ && !ended_) << "written outside a stream";
    EXPECT_FALSE(data.empty()) << "an empty chunk would end the stream";
    if (is_gone_ || bytes_.size() > max_bytes) return false;
    bytes_ += data;
    ++num_writes;
    return true;
  }
  void end(bool is_complete) override {
    EXPECT_TRUE(streamed_ && !ended_) << "ended outside a stream";
    ended_ = true;
    complete_ = is_complete;
  }
  void on_disconnect(std::function<void()> callback) override {
    on_disconnect_ = std::move(callback);
    if (is_gone_) disconnect();
  }
  void post(std::function<void()> task) override { tasks_.push_back(std::move(task)); }

  // The tasks posted so far and those they post.
  void run_tasks() {
    while (!tasks_.empty()) {
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      task();
    }
  }
  void disconnect() {
    is_gone_ = true;
    if (auto callback = std::exchange(on_disconnect_, nullptr)) callback();
  }

  bool is_answered() const { return response_.has_value(); }
  bool has_ended() const { return ended_; }
  bool is_stream() const { return streamed_; }
  bool is_complete() const { return complete_; }
  const HttpResponse& response() const { return *response_; }
  const std::string& bytes() const { return bytes_; }
  std::string header(const std::string& name) const {
    for (const auto& [key, value] : response_->headers) {
      if (key == name) return value;
    }
    return "";
  }

  size_t max_bytes = SIZE_MAX;  // a reader too slow for more
  size_t num_writes = 0;

 private:
  HttpRequest request_;
  std::optional<HttpResponse> response_;
  std::string bytes_;
  std::deque<std::function<void()>> tasks_;
  std::function<void()> on_disconnect_;
  bool streamed_ = false;
  bool ended_ = false;
  bool complete_ = false;
  bool is_gone_ = false;
};

}  // namespace tandem::test
