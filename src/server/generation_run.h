// server/generation_run.h: a request's way through the engine: submit, receive, answer; what chats and completions
// share.
//
//   The engine's sink only moves outputs into a mailbox and, when that was empty, posts receive(): everything else
//   happens on workers, one task of an exchange at a time, which is what guards the members. The answer begins with the
//   first output, when the cached tokens are known and an error can still be a status. A client that goes away cancels
//   its requests in the engine, wherever they are.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/api_context.h"
#include "server/api_error.h"
#include "server/http_exchange.h"

namespace tandem {

// "chatcmpl-" or "cmpl-" and 24 hex digits.
std::string new_request_id(std::string_view prefix);

class GenerationRun : public std::enable_shared_from_this<GenerationRun> {
 public:
  virtual ~GenerationRun() = default;

  // Submits one request for each prompt; their ids are set here. Call once.
  void start(std::vector<EngineRequest> requests);

 protected:
  // shared_ptr: the exchange and the context are used by whichever comes last, the engine's sink or the connection.
  GenerationRun(std::shared_ptr<HttpExchange> exchange, std::shared_ptr<const ApiContext> context, std::string id,
                bool stream);

  // The first output of all has arrived.
  virtual void begin() = 0;
  virtual HttpHeaders headers() const = 0;
  // The text a stream begins with.
  virtual void open_stream(std::string& text) = 0;
  // Takes an output of a prompt's candidate; stream text is appended.
  virtual void take(size_t prompt, EngineOutput&& output, std::string& text) = 0;
  virtual bool is_over(size_t prompt, int64_t candidate) const = 0;
  // All candidates are over: the end of the stream, or the whole answer.
  virtual void complete(std::string& text) = 0;

  const ApiContext& context() const { return *context_; }
  const std::string& id() const { return id_; }
  std::string engine_id(size_t prompt) const;
  int64_t created() const { return created_; }
  bool is_stream() const { return stream_; }
  int64_t cached_tokens() const;  // of all prompts

 private:
  using Clock = std::chrono::steady_clock;
  struct Arrival {
    size_t prompt = 0;
    Clock::time_point time;
    EngineOutput output;
  };
  struct Mailbox {
    std::mutex mutex;
    std::vector<Arrival> arrivals;  // guarded by mutex
  };

  // Ends the run: an error's status while nothing was sent, else an error frame and a closed connection.
  void fail(const ApiError& error);
  void abandon();
  void submit_all();
  void receive();
  void receive_one(Arrival&& arrival, std::string& text);
  void observe(const Arrival& arrival);
  void record_end(size_t prompt, RequestEnd end, const RequestTimes& times);
  void cancel_all();

  std::shared_ptr<HttpExchange> exchange_;
  std::shared_ptr<const ApiContext> context_;
  std::string id_;
  bool stream_;
  int64_t created_;
  std::vector<EngineRequest> requests_;  // until submitted
  Mailbox mailbox_;
  std::vector<std::vector<Clock::time_point>> last_arrival_;  // [prompt][candidate]
  std::vector<std::vector<bool>> ended_;                      // the engine's end was seen, or the reply was over before
  std::vector<RequestRecord> records_;
  size_t num_open_ = 0;  // candidates that are not over
  bool begun_ = false;
  bool done_ = false;  // answered, failed or abandoned
};

}  // namespace tandem
