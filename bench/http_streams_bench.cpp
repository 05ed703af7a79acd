// Many SSE streams at once through server/http_server.h: what a frame costs the server's CPU, what a stream costs its
// memory, and how late a frame arrives. One process serves and produces a frame for every stream at each tick, as an
// engine's step does; another reads them all. Prints one JSON line. docs/adr/0010-http-library.md.
//
//   http_streams_bench [streams=512] [ticks_per_second=20] [seconds=10]
//   http_streams_bench STREAMS TICKS SECONDS PORT PID    reads from a server that runs already, to compare with
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/cat.h"
#include "server/http_server.h"

namespace {

using tandem::cat;

struct Plan {
  int streams = 512;
  double ticks_per_second = 20;
  double seconds = 10;
};

int64_t clock_ns(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

// A frame as large as one token of a chat, with the time it was made.
std::string make_frame(int64_t now_ns) {
  constexpr std::string_view kBegin =
      "data: {\"id\":\"chatcmpl-0123456789abcdef01234567\",\"object\":\"chat.completion.chunk\",\"t\":";
  constexpr std::string_view kEnd =
      ",\"model\":\"nano\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"finish_reason\":null}]}\n\n";
  std::string out;
  out.reserve(256);
  out.append(kBegin).append(std::to_string(now_ns)).append(kEnd);
  return out;
}

// ---- the server's process -------------------------------------------------------------------------------------------

// A frame for every open stream at each tick, handed over the way an engine's thread does, until the process is killed.
[[noreturn]] void serve(const Plan& plan, int port_pipe) {
  std::mutex mu;
  std::vector<std::shared_ptr<tandem::HttpExchange>> open;
  tandem::HttpServerOptions options;
  options.port = 0;
  auto server = tandem::HttpServer::start(options, [&](std::shared_ptr<tandem::HttpExchange> exchange) {
    tandem::HttpResponse response;
    response.content_type = "text/event-stream; charset=utf-8";
    exchange->begin_stream(std::move(response));
    const std::lock_guard lock(mu);
    open.push_back(std::move(exchange));
  });
  if (!server.is_ok()) {
    std::fprintf(stderr, "%s\n", server.status().message().c_str());
    _exit(1);
  }
  const uint16_t port = server.value()->port();
  if (::write(port_pipe, &port, sizeof port) != sizeof port) _exit(1);
  const auto tick = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(1 / plan.ticks_per_second));
  for (auto next = std::chrono::steady_clock::now() + tick;; next += tick) {
    std::this_thread::sleep_until(next);
    const std::lock_guard lock(mu);
    for (const auto& exchange : open) {
      exchange->post([exchange, frame = make_frame(clock_ns(CLOCK_MONOTONIC))] { exchange->write(frame); });
    }
  }
}

// ---- the client's process -------------------------------------------------------------------------------------------

int connect_stream(uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  constexpr std::string_view kRequest = "GET /stream HTTP/1.1\r\nHost: bench\r\n\r\n";
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::send(fd, kRequest.data(), kRequest.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(kRequest.size())) {
    std::perror("connecting");
    std::exit(1);
  }
  return fd;
}

int64_t resident_kb(pid_t pid) {
  std::ifstream status(cat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return std::atoll(line.c_str() + 6);
  }
  return 0;
}

struct Reader {
  explicit Reader(int num_streams) : poller(::epoll_create1(0)), partial(static_cast<size_t>(num_streams)) {}

  void add(uint16_t port, uint32_t stream) {
    const int fd = connect_stream(port);
    fds.push_back(fd);
    epoll_event event = {EPOLLIN, {}};
    event.data.u32 = stream;
    ::epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
  }

  // Reads until `end_ns`; delays are kept when `is_measured`.
  void read_until(int64_t end_ns, bool is_measured) {
    std::vector<epoll_event> events(256);
    while (clock_ns(CLOCK_MONOTONIC) < end_ns) {
      const int count = ::epoll_wait(poller, events.data(), static_cast<int>(events.size()), 20);
      for (int i = 0; i < count; ++i) read_one(events[static_cast<size_t>(i)].data.u32, is_measured);
    }
  }

  void read_one(uint32_t stream, bool is_measured) {
    char buffer[16384];
    const ssize_t size = ::recv(fds[stream], buffer, sizeof buffer, MSG_DONTWAIT);
    if (size == 0) {
      std::fprintf(stderr, "stream %u was closed\n", stream);
      std::exit(1);
    }
    if (size < 0) return;
    const int64_t now = clock_ns(CLOCK_MONOTONIC);
    std::string& text = partial[stream];
    text.append(buffer, static_cast<size_t>(size));
    for (;;) {
      const size_t end = text.find("}\n\n");
      if (end == std::string::npos) return;
      const size_t stamp = text.rfind("\"t\":", end);
      if (stamp != std::string::npos && is_measured) delays_ns.push_back(now - std::atoll(text.c_str() + stamp + 4));
      text.erase(0, end + 3);
    }
  }

  double delay_us(double quantile) {
    if (delays_ns.empty()) return 0;
    const size_t at = static_cast<size_t>(quantile * static_cast<double>(delays_ns.size() - 1));
    std::nth_element(delays_ns.begin(), delays_ns.begin() + static_cast<std::ptrdiff_t>(at), delays_ns.end());
    return static_cast<double>(delays_ns[at]) / 1000;
  }

  int poller;
  std::vector<int> fds;
  std::vector<std::string> partial;
  std::vector<int64_t> delays_ns;
};

void measure(const Plan& plan, uint16_t port, pid_t server) {
  clockid_t server_cpu = {};
  if (clock_getcpuclockid(server, &server_cpu) != 0) {
    std::fprintf(stderr, "process %d: its CPU clock cannot be read\n", server);
    std::exit(1);
  }
  Reader reader(plan.streams);
  reader.add(port, 0);
  constexpr int64_t kSecond = 1000000000;
  reader.read_until(clock_ns(CLOCK_MONOTONIC) + kSecond / 2, false);
  const int64_t one_stream_kb = resident_kb(server);
  for (int i = 1; i < plan.streams; ++i) {
    reader.add(port, static_cast<uint32_t>(i));
    reader.read_until(0, false);
  }
  reader.read_until(clock_ns(CLOCK_MONOTONIC) + 2 * kSecond, false);
  const int64_t cpu_begin = clock_ns(server_cpu);
  const int64_t begin = clock_ns(CLOCK_MONOTONIC);
  reader.read_until(begin + static_cast<int64_t>(plan.seconds * 1e9), true);
  const double seconds = static_cast<double>(clock_ns(CLOCK_MONOTONIC) - begin) / 1e9;
  const double cpu_us = static_cast<double>(clock_ns(server_cpu) - cpu_begin) / 1000;
  const int64_t all_streams_kb = resident_kb(server);
  const double frames = static_cast<double>(reader.delays_ns.size());
  std::printf(
      "{\"benchmark\":\"http_streams\",\"streams\":%d,\"ticks_per_second\":%.0f,\"seconds\":%.2f,\"frames\":%.0f,"
      "\"frames_expected\":%.0f,\"server_cpu_us_per_frame\":%.2f,\"server_cpu_percent_of_a_core\":%.1f,"
      "\"resident_kb_per_stream\":%.1f,\"delay_us\":{\"p50\":%.0f,\"p99\":%.0f,\"max\":%.0f}}\n",
      plan.streams, plan.ticks_per_second, seconds, frames, plan.streams * plan.ticks_per_second * seconds,
      cpu_us / frames, cpu_us / seconds / 1e4, static_cast<double>(all_streams_kb - one_stream_kb) / (plan.streams - 1),
      reader.delay_us(0.5), reader.delay_us(0.99), reader.delay_us(1));
}

}  // namespace

int main(int argc, char** argv) {
  Plan plan;
  if (argc > 1) plan.streams = std::atoi(argv[1]);
  if (argc > 2) plan.ticks_per_second = std::atof(argv[2]);
  if (argc > 3) plan.seconds = std::atof(argv[3]);
  if (plan.streams < 2 || plan.ticks_per_second <= 0 || plan.seconds <= 0 || argc == 5 || argc > 6) {
    std::fprintf(stderr, "usage: http_streams_bench [streams >= 2] [ticks_per_second] [seconds] [port pid]\n");
    return 2;
  }
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  if (argc == 6) {
    measure(plan, static_cast<uint16_t>(std::atoi(argv[4])), std::atoi(argv[5]));
    return 0;
  }
  int port_pipe[2];
  if (::pipe(port_pipe) != 0) return 1;
  const pid_t child = ::fork();
  if (child == 0) serve(plan, port_pipe[1]);
  uint16_t port = 0;
  ::close(port_pipe[1]);
  if (child < 0 || ::read(port_pipe[0], &port, sizeof port) != sizeof port) return 1;
  measure(plan, port, child);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return 0;
}
