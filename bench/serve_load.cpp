// serve_load: loads a running `tandem serve` and measures what its clients see. Plain sockets and threads, so that the
// client costs little beside the server on a small machine.
//
//   ttft    time to first token, cold and warm, by prompt length; cold and warm runs take turns
//   decode  tokens a second of several streams at once, between the last one's first token and the first one's last
//   steady  requests at a rate: time to first token and time per output token, of each and altogether. A seed fixes the
//           prompts and the times they are sent at, so that two servers can be compared request by request
//   turns   chats of several turns: time to the first token of each later turn, and how much of its prompt was cached
//
//   Prompts are random token ids, so that nothing but the warm runs can hit the cache. Results are JSON on stdout.
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

struct Target {
  std::string host = "127.0.0.1";
  std::string port = "8000";
  std::string model = "nano";
  int32_t first_id = 300;  // random prompts use ids of this range
  int32_t last_id = 2500;
};

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "serve_load: %s\n", message.c_str());
  std::exit(1);
}

int connect_to(const Target& target) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(target.host.c_str(), target.port.c_str(), &hints, &found) != 0) fail("no address for " + target.host);
  const int fd = socket(found->ai_family, found->ai_socktype, 0);
  if (fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
    fail("cannot connect to " + target.host + ":" + target.port + ": " + std::strerror(errno));
  }
  freeaddrinfo(found);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

struct Reply {
  std::vector<Clock::time_point> frames;  // arrival of each data frame with choices
  Clock::time_point sent;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  std::string reasoning, content;  // of a chat
  double ttft() const { return seconds(sent, frames.front()); }
};

// A streamed reply; the connection is closed behind it.
Reply post(const Target& target, const std::string& path, const Json& body) {
  const std::string text = body.dump();
  const std::string request =
      "POST " + path + " HTTP/1.1\r\nHost: " + target.host +
      "\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: " + std::to_string(text.size()) +
      "\r\n\r\n" + text;
  const int fd = connect_to(target);
  Reply reply;
  reply.sent = Clock::now();
  for (size_t done = 0; done < request.size();) {
    const ssize_t n = send(fd, request.data() + done, request.size() - done, MSG_NOSIGNAL);
    if (n <= 0) fail("the server closed the connection while the request was sent");
    done += static_cast<size_t>(n);
  }
  std::string received;
  size_t parsed = 0;
  char buffer[65536];
  for (ssize_t n; (n = recv(fd, buffer, sizeof buffer, 0)) > 0;) {
    const Clock::time_point now = Clock::now();
    received.append(buffer, static_cast<size_t>(n));
    while (true) {
      const size_t begin = received.find("data: ", parsed);
      const size_t end = begin == std::string::npos ? begin : received.find("\n\n", begin);
      if (end == std::string::npos) break;
      const std::string frame = received.substr(begin + 6, end - begin - 6);
      parsed = end;
      if (frame == "[DONE]") continue;
      if (frame.find("\"choices\":[]") == std::string::npos) {
        reply.frames.push_back(now);
        if (frame.find("\"delta\"") == std::string::npos) continue;
        const Json delta = Json::parse(frame)["choices"][0]["delta"];
        if (delta.contains("reasoning_content")) reply.reasoning += delta["reasoning_content"].get<std::string>();
        if (delta.contains("content") && delta["content"].is_string())
          reply.content += delta["content"].get<std::string>();
        continue;
      }
      const Json usage = Json::parse(frame)["usage"];
      reply.prompt_tokens = usage["prompt_tokens"];
      reply.completion_tokens = usage["completion_tokens"];
      reply.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"];
    }
  }
  close(fd);
  if (reply.frames.empty() || reply.completion_tokens == 0) fail("no completion came: " + received.substr(0, 600));
  return reply;
}

Reply complete(const Target& target, const std::vector<int32_t>& prompt, int64_t max_tokens) {
  return post(target, "/v1/completions",
              {{"model", target.model},
               {"prompt", prompt},
               {"max_tokens", max_tokens},
               {"temperature", 0},
               {"ignore_eos", true},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}});
}

class Prompts {
 public:
  explicit Prompts(const Target& target, uint32_t seed) : random_(seed), id_(target.first_id, target.last_id) {}
  std::vector<int32_t> draw(int64_t length) {
    std::vector<int32_t> ids(static_cast<size_t>(length));
    for (int32_t& id : ids) id = id_(random_);
    return ids;
  }

 private:
  std::mt19937 random_;
  std::uniform_int_distribution<int32_t> id_;
};

Json spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double q) {
    return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
  };
  return {
      {"median", at(0.5)}, {"min", values.front()}, {"max", values.back()}, {"p90", at(0.9)}, {"runs", values.size()}};
}

Json measure_ttft(const Target& target, const std::vector<int64_t>& lengths, int64_t repeat, int64_t new_tokens) {
  Prompts prompts(target, std::random_device{}());
  complete(target, prompts.draw(256), 1);  // wakes everything
  Json cases = Json::array();
  for (const int64_t length : lengths) {
    std::vector<double> cold, same, extended, unit;
    int64_t cached_same = 0, cached_extended = 0;
    for (int64_t i = 0; i < repeat; ++i) {
      std::vector<int32_t> prompt = prompts.draw(length);
      unit.push_back(complete(target, prompts.draw(128), 1).ttft());
      cold.push_back(complete(target, prompt, 1).ttft());
      const Reply again = complete(target, prompt, 1);
      same.push_back(again.ttft());
      cached_same = again.cached_tokens;
      const std::vector<int32_t> more = prompts.draw(new_tokens);
      prompt.insert(prompt.end(), more.begin(), more.end());
      const Reply longer = complete(target, prompt, 1);
      extended.push_back(longer.ttft());
      cached_extended = longer.cached_tokens;
    }
    const double bound = 0.05 * spread(cold)["median"].get<double>() + spread(unit)["median"].get<double>();
    cases.push_back({{"prompt_tokens", length},
                     {"cold_seconds", spread(cold)},
                     {"same_prompt_seconds", spread(same)},
                     {"same_prompt_cached_tokens", cached_same},
                     {"same_prompt_tail_tokens", length - cached_same},
                     {"extended_by_tokens", new_tokens},
                     {"extended_seconds", spread(extended)},
                     {"extended_cached_tokens", cached_extended},
                     {"extended_tail_tokens", length + new_tokens - cached_extended},
                     {"one_unit_seconds", spread(unit)},
                     {"bound_seconds", bound}});
  }
  return {{"what", "time to first token through the server"}, {"cases", cases}};
}

// Each turn adds `words` random words to its chat; the replies go back as they came.
Json measure_turns(const Target& target, int64_t chats, int64_t turns, int64_t words, int64_t tokens) {
  std::mt19937 random(std::random_device{}());
  std::uniform_int_distribution<int> letter('a', 'z');
  std::vector<double> first, later;
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  for (int64_t c = 0; c < chats; ++c) {
    Json messages = Json::array();
    for (int64_t turn = 0; turn < turns; ++turn) {
      std::string text;
      for (int64_t w = 0; w < words; ++w) {
        for (int i = 0; i < 4; ++i) text += static_cast<char>(letter(random));
        text += ' ';
      }
      messages.push_back({{"role", "user"}, {"content", text}});
      const Reply reply = post(target, "/v1/chat/completions",
                               {{"model", target.model},
                                {"messages", messages},
                                {"max_tokens", tokens},
                                {"temperature", 0},
                                {"stream", true},
                                {"stream_options", {{"include_usage", true}}}});
      (turn == 0 ? first : later).push_back(reply.ttft());
      if (turn > 0) {
        prompt_tokens += reply.prompt_tokens;
        cached_tokens += reply.cached_tokens;
      }
      completion_tokens += reply.completion_tokens;
      messages.push_back({{"role", "assistant"}, {"reasoning_content", reply.reasoning}, {"content", reply.content}});
    }
  }
  return {{"what", "time to first token of a chat's turns"},
          {"chats", chats},
          {"turns", turns},
          {"mean_reply_tokens", static_cast<double>(completion_tokens) / static_cast<double>(chats * turns)},
          {"first_turn_seconds", spread(first)},
          {"later_turn_seconds", spread(later)},
          {"later_turn_prompt_tokens", prompt_tokens},
          {"later_turn_cached_tokens", cached_tokens}};
}

Json measure_decode(const Target& target, int64_t streams, int64_t prompt_tokens, int64_t tokens, int64_t repeat) {
  Prompts prompts(target, std::random_device{}());
  std::vector<double> rates;
  for (int64_t i = 0; i < repeat; ++i) {
    std::vector<std::vector<int32_t>> drawn;
    for (int64_t s = 0; s < streams; ++s) drawn.push_back(prompts.draw(prompt_tokens));
    std::vector<Reply> replies(static_cast<size_t>(streams));
    std::vector<std::thread> clients;
    for (size_t s = 0; s < replies.size(); ++s) {
      clients.emplace_back([&, s] { replies[s] = complete(target, drawn[s], tokens); });
    }
    for (std::thread& client : clients) client.join();
    Clock::time_point all_run = replies[0].frames.front(), first_ends = replies[0].frames.back();
    for (const Reply& reply : replies) {
      all_run = std::max(all_run, reply.frames.front());
      first_ends = std::min(first_ends, reply.frames.back());
    }
    int64_t frames = 0;  // a frame is a token, but for text that waits for its next byte: counted by their share
    double weight = 0;
    for (const Reply& reply : replies) {
      const auto inside = std::count_if(reply.frames.begin(), reply.frames.end(),
                                        [&](Clock::time_point t) { return t > all_run && t <= first_ends; });
      frames += inside;
      weight += static_cast<double>(inside) * static_cast<double>(reply.completion_tokens) /
                static_cast<double>(reply.frames.size());
    }
    if (frames == 0) fail("the streams never ran at the same time: ask for more tokens");
    rates.push_back(weight / seconds(all_run, first_ends));
  }
  return {{"what", "tokens a second of all streams together, while all run"},
          {"streams", streams},
          {"prompt_tokens", prompt_tokens},
          {"tokens", tokens},
          {"tokens_per_second", spread(rates)}};
}

// `seed` fixes prompts and times: between two requests lies 1 / rate, a quarter more or less, so that they meet
// whatever the server does between them at every stage of it.
Json measure_steady(const Target& target, double rate, double duration, int64_t prompt_tokens, int64_t tokens,
                    uint32_t seed) {
  Prompts prompts(target, seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> gap(0.75 / rate, 1.25 / rate);
  const auto count = std::max<size_t>(static_cast<size_t>(rate * duration), 1);
  // Every second request repeats the prompt before it, so that there are hits.
  std::vector<std::vector<int32_t>> drawn;
  for (size_t i = 0; i < count; ++i) drawn.push_back(i % 2 == 1 ? drawn.back() : prompts.draw(prompt_tokens));
  std::vector<Reply> replies(count);
  std::vector<std::thread> clients;
  const Clock::time_point start = Clock::now();
  Clock::time_point next = start;
  for (size_t i = 0; i < count; ++i) {
    std::this_thread::sleep_until(next);
    clients.emplace_back([&, i] { replies[i] = complete(target, drawn[i], tokens); });
    next += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(gap(random)));
  }
  for (std::thread& client : clients) client.join();
  std::vector<double> ttft, tpot;
  for (const Reply& reply : replies) {
    ttft.push_back(reply.ttft());
    tpot.push_back(seconds(reply.frames.front(), reply.frames.back()) /
                   static_cast<double>(std::max<int64_t>(reply.completion_tokens - 1, 1)));
  }
  return {{"what", "requests at a fixed rate"},
          {"rate_per_second", rate},
          {"requests", count},
          {"prompt_tokens", prompt_tokens},
          {"tokens", tokens},
          {"seed", seed},
          {"ttft_seconds", spread(ttft)},
          {"tpot_seconds", spread(tpot)},
          {"ttft_seconds_each", ttft},
          {"tpot_seconds_each", tpot},
          {"wall_seconds", seconds(start, Clock::now())}};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Measures a running `tandem serve` as its clients see it; JSON on stdout."};
  app.require_subcommand(1);
  Target target;
  std::vector<int64_t> lengths = {1024, 4096, 16384};
  int64_t repeat = 5, new_tokens = 64, streams = 16, prompt_tokens = 128, tokens = 128;
  int64_t chats = 5, turns = 4, words = 200;
  double rate = 1, duration = 30;
  std::optional<uint32_t> seed;
  app.add_option("--host", target.host)->capture_default_str();
  app.add_option("--port", target.port)->capture_default_str();
  app.add_option("--model", target.model)->capture_default_str();
  app.add_option("--first-id", target.first_id, "random prompts use ids from here")->capture_default_str();
  app.add_option("--last-id", target.last_id, "to here")->capture_default_str();
  CLI::App* ttft = app.add_subcommand("ttft", "time to first token, cold and warm");
  ttft->add_option("--lengths", lengths, "prompt tokens")->delimiter(',')->capture_default_str();
  ttft->add_option("--new-tokens", new_tokens, "of the next turn")->capture_default_str();
  CLI::App* decode = app.add_subcommand("decode", "rate of several streams");
  decode->add_option("--streams", streams)->capture_default_str();
  CLI::App* steady = app.add_subcommand("steady", "requests at a fixed rate");
  steady->add_option("--rate", rate, "requests a second")->capture_default_str();
  steady->add_option("--seconds", duration)->capture_default_str();
  steady->add_option("--seed", seed, "of prompts and times (default: another one each time)");
  CLI::App* turn = app.add_subcommand("turns", "chats of several turns");
  turn->add_option("--chats", chats)->capture_default_str();
  turn->add_option("--turns", turns, "of each chat, at least 2")->check(CLI::Range(2, 1000))->capture_default_str();
  turn->add_option("--words", words, "of each user message")->capture_default_str();
  for (CLI::App* command : {ttft, decode}) command->add_option("--repeat", repeat)->capture_default_str();
  for (CLI::App* command : {decode, steady}) {
    command->add_option("--prompt-tokens", prompt_tokens)->capture_default_str();
  }
  for (CLI::App* command : {decode, steady, turn}) {
    command->add_option("--tokens", tokens, "generated by each request")->capture_default_str();
  }
  app.footer(
      "Example:\n  build/tandem serve models/nano --port 8000 &\n  build/bench/serve_load ttft --lengths 1024,4096");
  CLI11_PARSE(app, argc, argv);
  Json result;
  if (*ttft) result = measure_ttft(target, lengths, repeat, new_tokens);
  if (*decode) result = measure_decode(target, streams, prompt_tokens, tokens, repeat);
  if (*turn) result = measure_turns(target, chats, turns, words, tokens);
  if (*steady)
    result = measure_steady(target, rate, duration, prompt_tokens, tokens, seed.value_or(std::random_device{}()));
  std::puts(result.dump(1).c_str());
}
