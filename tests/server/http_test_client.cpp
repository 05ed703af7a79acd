#include "server/http_test_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/cat.h"
#include "server/http_message.h"

namespace tandem::test {
namespace {
constexpr int kDeadlineMs = 20000;
}

RawClient::RawClient(uint16_t port, int receive_buffer_bytes) {
  fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer_bytes > 0) {
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
  }
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) close();
  const int on = 1;
  if (fd_ >= 0) ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

RawClient::~RawClient() { close(); }

bool RawClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t size = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (size <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(size));
  }
  return true;
}

void RawClient::close_sending() { ::shutdown(fd_, SHUT_WR); }

void RawClient::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void RawClient::reset() {
  const linger now = {1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close();
}

bool RawClient::fill() {
  pollfd entry = {fd_, POLLIN, 0};
  if (::poll(&entry, 1, kDeadlineMs) <= 0) {
    has_failed_ = true;
    return false;
  }
  char buffer[16384];
  const ssize_t size = ::recv(fd_, buffer, sizeof buffer, 0);
  if (size <= 0) return false;
  received_.append(buffer, static_cast<size_t>(size));
  return true;
}

std::string RawClient::read_until(std::string_view text) {
  size_t at = received_.find(text);
  while (at == std::string::npos) {
    if (!fill()) return std::exchange(received_, {});
    at = received_.find(text);
  }
  std::string out = received_.substr(0, at + text.size());
  received_.erase(0, at + text.size());
  return out;
}

ParsedResponse RawClient::read_response(bool has_body) {
  ParsedResponse response;
  const std::string head = read_until("\r\n\r\n");
  if (head.size() < 4 || head.substr(head.size() - 4) != "\r\n\r\n" || head.substr(0, 9) != "HTTP/1.1 ")
    return response;
  response.status = std::stoi(head.substr(9, 3));
  size_t begin = head.find("\r\n") + 2;
  while (begin + 2 < head.size()) {
    const size_t end = head.find("\r\n", begin);
    const size_t colon = head.find(": ", begin);
    response.headers[to_lower_ascii(head.substr(begin, colon - begin))] = head.substr(colon + 2, end - colon - 2);
    begin = end + 2;
  }
  if (!has_body || response.status == 204 || response.status < 200) {
    response.is_complete = true;
  } else if (response.headers.count("content-length") != 0) {
    const size_t size = std::stoul(response.headers["content-length"]);
    while (received_.size() < size && fill()) {
    }
    response.is_complete = received_.size() >= size;
    response.body = received_.substr(0, size);
    received_.erase(0, response.body.size());
  } else if (response.headers.count("transfer-encoding") != 0) {
    response.is_complete = take_chunks(response);
  } else {
    response.body = read_to_end();
    response.is_complete = !has_failed_;
  }
  return response;
}

bool RawClient::take_chunks(ParsedResponse& response) {
  for (;;) {
    const std::string line = read_until("\r\n");
    if (line.size() < 3) return false;
    const size_t size = std::stoul(line, nullptr, 16);
    while (received_.size() < size + 2 && fill()) {
    }
    if (received_.size() < size + 2 || received_.substr(size, 2) != "\r\n") return false;
    if (size > 0) response.chunks.push_back(received_.substr(0, size));
    response.body += received_.substr(0, size);
    received_.erase(0, size + 2);
    if (size == 0) return true;
  }
}

std::string RawClient::read_to_end() {
  while (fill()) {
  }
  return std::exchange(received_, {});
}

bool RawClient::is_closed_by_server() { return read_to_end().empty() && !has_failed_; }

std::string get_request(std::string_view path, std::string_view more_headers) {
  return cat("GET ", path, " HTTP/1.1\r\nHost: test\r\n", more_headers, "\r\n");
}

std::string post_request(std::string_view path, std::string_view body, std::string_view more_headers) {
  return cat("POST ", path, " HTTP/1.1\r\nHost: test\r\nContent-Length: ", body.size(), "\r\n", more_headers, "\r\n",
             body);
}

HttpServerOptions test_options() {
  HttpServerOptions options;
  options.port = 0;
  return options;
}

std::unique_ptr<HttpServer> start_server(HttpServerOptions options, HttpHandler handler, HttpServerHooks hooks) {
  auto server = HttpServer::start(std::move(options), std::move(handler), std::move(hooks));
  EXPECT_TRUE(server.is_ok()) << server.status().message();
  return server.is_ok() ? std::move(server).value() : nullptr;
}

void sleep_a_little() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

}  // namespace tandem::test
