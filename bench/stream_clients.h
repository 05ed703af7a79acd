// bench/stream_clients.h: streamed completions on plain sockets, read seldom and in large pieces: a client that costs a
// small machine next to nothing while its server is measured.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/cat.h"

namespace tandem {

[[noreturn]] inline void fail_bench(const std::string& message) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  std::exit(1);
}

// Their sockets, and a thread that reads what came, ten times a second.
class StreamClients {
 public:
  StreamClients(uint16_t port, const std::vector<std::string>& bodies) : received_(bodies.size()) {
    for (const std::string& body : bodies) {
      sockaddr_in address = {};
      address.sin_family = AF_INET;
      address.sin_port = htons(port);
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
        fail_bench("cannot connect");
      const std::string request =
          cat("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ",
              body.size(), "\r\n\r\n", body);
      if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) {
        fail_bench("a request could not be sent");
      }
      sockets_.push_back(fd);
    }
    reader_ = std::thread([this] {
      while (!is_over_) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        read_all();
      }
    });
  }
  ~StreamClients() {
    for (const int fd : sockets_) close(fd);
  }

  // No thread reads any more; the connections stay open.
  void stop_reading() {
    is_over_ = true;
    reader_.join();
    read_all();
  }

  // The text that a stream's frames bring.
  std::string text(size_t stream) const {
    const std::string& received = received_[stream];
    std::string text;
    for (size_t at = 0; (at = received.find("data: {", at)) != std::string::npos;) {
      const size_t end = received.find("\n\n", at);
      if (end == std::string::npos) break;
      const nlohmann::json frame = nlohmann::json::parse(received.substr(at + 6, end - at - 6));
      if (frame.contains("error")) fail_bench(frame.dump());
      text += frame["choices"][0]["text"].get<std::string>();
      at = end;
    }
    if (text.empty()) fail_bench(cat("stream ", stream, " got no text: ", received.substr(0, 400)));
    return text;
  }

 private:
  void read_all() {
    static thread_local char buffer[65536];
    for (size_t i = 0; i < sockets_.size(); ++i) {
      for (ssize_t n; (n = recv(sockets_[i], buffer, sizeof buffer, MSG_DONTWAIT)) > 0;) {
        received_[i].append(buffer, static_cast<size_t>(n));
      }
    }
  }

  std::vector<int> sockets_;
  std::vector<std::string> received_;
  std::atomic<bool> is_over_{false};
  std::thread reader_;
};

}  // namespace tandem
