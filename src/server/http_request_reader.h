// server/http_request_reader.h: bytes to one HttpRequest, within limits. Knows no socket: a connection, a test or a
// fuzzer feeds it. Boost.Beast parses the message; here is what a server must refuse beside that. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "server/http_exchange.h"

namespace tandem {

struct HttpReadLimits {
  int64_t max_header_bytes = int64_t{64} << 10;
  int64_t max_body_bytes = int64_t{64} << 20;
};

enum class HttpReadState { kHeader, kBody, kDone, kRefused };

class HttpRequestReader {
 public:
  explicit HttpRequestReader(const HttpReadLimits& limits);
  HttpRequestReader(HttpRequestReader&&) noexcept;
  HttpRequestReader& operator=(HttpRequestReader&&) noexcept;
  ~HttpRequestReader();

  // Takes what belongs to this request from the front of `input`; bytes of a later one stay. What is left in state
  // kHeader or kBody is an unfinished line and must be offered again with more behind it; it is bounded by
  // max_header_bytes and 16 KiB.
  HttpReadState feed(std::string& input);
  HttpReadState state() const;

  bool has_begun() const;  // a byte of the request was seen
  // True once: the client waits for "100 Continue" before it sends the body.
  bool take_expects_continue();

  // In state kDone, until the request is taken.
  HttpRequest take_request();
  bool keep_alive() const;
  int version() const;   // 10 or 11
  bool is_head() const;  // its request says GET: the answer is the same, without the body

  // In state kRefused: what to answer before closing.
  const HttpResponse& refusal() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
