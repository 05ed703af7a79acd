#include "server/generation_run.h"

#include <ctime>
#include <utility>

#include "base/cat.h"

namespace tandem {

std::string new_request_id(std::string_view prefix) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string id(prefix);
  for (int part = 0; part < 2; ++part) {
    uint64_t bits = random_seed();
    for (int digit = 0; digit < 12; ++digit, bits >>= 4) id.push_back(kHex[bits & 15]);
  }
  return id;
}

GenerationRun::GenerationRun(std::shared_ptr<HttpExchange> exchange, std::shared_ptr<const ApiContext> context,
                             std::string id, bool stream)
    : exchange_(std::move(exchange)),
      context_(std::move(context)),
      id_(std::move(id)),
      stream_(stream),
      created_(static_cast<int64_t>(std::time(nullptr))) {}

std::string GenerationRun::engine_id(size_t prompt) const { return prompt == 0 ? id_ : cat(id_, "-", prompt); }

int64_t GenerationRun::cached_tokens() const {
  int64_t sum = 0;
  for (const RequestRecord& record : records_) sum += record.cached_tokens;
  return sum;
}

void GenerationRun::start(std::vector<EngineRequest> requests) {
  for (size_t i = 0; i < requests.size(); ++i) {
    EngineRequest& request = requests[i];
    request.id = engine_id(i);
    const auto num_candidates = static_cast<size_t>(request.num_candidates);
    last_arrival_.emplace_back(num_candidates);
    ended_.emplace_back(num_candidates, false);
    RequestRecord& record = records_.emplace_back();
    record.prompt_tokens = static_cast<int64_t>(request.prompt.size());
    record.max_tokens = request.max_tokens;
    record.num_candidates = request.num_candidates;
    num_open_ += num_candidates;
  }
  requests_ = std::move(requests);
  // Posted, so that no output is received before the last prompt is submitted.
  exchange_->post([self = shared_from_this()] { self->submit_all(); });
}

void GenerationRun::submit_all() {
  std::vector<std::string> ids;
  for (size_t i = 0; i < requests_.size(); ++i) {
    ids.push_back(requests_[i].id);
    const Status status =
        context_->engine.submit(std::move(requests_[i]), [self = shared_from_this(), i](EngineOutput&& output) {
          bool was_empty = false;
          {
            const std::lock_guard lock(self->mailbox_.mutex);
            was_empty = self->mailbox_.arrivals.empty();
            self->mailbox_.arrivals.push_back({i, Clock::now(), std::move(output)});
          }
          if (was_empty) self->exchange_->post([self] { self->receive(); });
        });
    if (status.is_ok()) continue;
    for (const std::string& id : ids) context_->engine.cancel(id);
    fail(submit_error(status, context_->options.retry_after_seconds));
    return;
  }
  requests_.clear();
  // Holds the context and no exchange: a connection must not keep itself alive.
  exchange_->on_disconnect([context = context_, ids = std::move(ids)] {
    for (const std::string& id : ids) context->engine.cancel(id);
  });
}

void GenerationRun::receive() {
  std::vector<Arrival> arrivals;
  {
    const std::lock_guard lock(mailbox_.mutex);
    arrivals.swap(mailbox_.arrivals);
  }
  std::string text;
  for (Arrival& arrival : arrivals) receive_one(std::move(arrival), text);
  if (done_) return;
  if (begun_ && num_open_ == 0) {
    done_ = true;
    complete(text);
    if (stream_) {
      exchange_->end(exchange_->write(std::move(text)));
      return;
    }
    HttpResponse response;
    response.headers = headers();
    response.body = std::move(text);
    exchange_->respond(std::move(response));
    return;
  }
  if (stream_ && !text.empty() && !exchange_->write(std::move(text))) abandon();
}

void GenerationRun::abandon() {
  done_ = true;
  cancel_all();
  exchange_->end(false);
}

void GenerationRun::receive_one(Arrival&& arrival, std::string& text) {
  const size_t prompt = arrival.prompt;
  const int64_t candidate = arrival.output.candidate;
  observe(arrival);
  if (done_ || ended_[prompt][static_cast<size_t>(candidate)]) return;
  if (arrival.output.finish == EngineFinish::kError || arrival.output.finish == EngineFinish::kAbort) {
    const bool is_error = arrival.output.finish == EngineFinish::kError;
    const Status cancelled(StatusCode::kCancelled, "the server cancelled the request before it was complete");
    if (!text.empty() && begun_ && stream_) exchange_->write(std::exchange(text, {}));
    fail(run_error(is_error ? arrival.output.error : cancelled));
    return;
  }
  if (!begun_) {
    begun_ = true;
    begin();
    if (stream_) {
      HttpResponse response;
      response.content_type = "text/event-stream; charset=utf-8";
      response.headers = headers();
      response.headers.emplace_back("Cache-Control", "no-cache");
      response.headers.emplace_back("X-Accel-Buffering", "no");
      exchange_->begin_stream(std::move(response));
      open_stream(text);
    }
  }
  const bool engine_ended = arrival.output.finish.has_value();
  take(prompt, std::move(arrival.output), text);
  if (done_ || !is_over(prompt, candidate)) return;
  ended_[prompt][static_cast<size_t>(candidate)] = true;
  --num_open_;
  if (!engine_ended) context_->engine.cancel(engine_id(prompt), candidate);
}

// Counts every output, also those nobody reads any more.
void GenerationRun::observe(const Arrival& arrival) {
  const EngineOutput& output = arrival.output;
  RequestRecord& record = records_[arrival.prompt];
  record.cached_tokens = output.cached_tokens;
  const auto num_tokens = static_cast<int64_t>(output.tokens.size());
  record.generated_tokens += num_tokens;
  Clock::time_point& last = last_arrival_[arrival.prompt][static_cast<size_t>(output.candidate)];
  if (num_tokens > 0) {
    if (context_->observer != nullptr && last != Clock::time_point()) {
      context_->observer->on_tokens(std::chrono::duration<double>(arrival.time - last).count(), num_tokens);
    }
    last = arrival.time;
  }
  if (!output.finish) return;
  switch (*output.finish) {
    case EngineFinish::kStop: record_end(arrival.prompt, RequestEnd::kStop, output.times); break;
    case EngineFinish::kLength: record_end(arrival.prompt, RequestEnd::kLength, output.times); break;
    case EngineFinish::kError: record_end(arrival.prompt, RequestEnd::kError, output.times); break;
    case EngineFinish::kAbort: {
      // One that was cancelled because its reply was over ended well.
      const bool was_over = ended_[arrival.prompt][static_cast<size_t>(output.candidate)];
      record_end(arrival.prompt, was_over ? RequestEnd::kStop : RequestEnd::kAbort, output.times);
      break;
    }
  }
}

void GenerationRun::record_end(size_t prompt, RequestEnd end, const RequestTimes& times) {
  RequestRecord& record = records_[prompt];
  record.ends.push_back(end);
  record.times = times;
  const bool is_last = static_cast<int64_t>(record.ends.size()) == record.num_candidates;
  if (is_last && context_->observer != nullptr) context_->observer->on_finished(record);
}

void GenerationRun::fail(const ApiError& error) {
  if (done_) return;
  done_ = true;
  cancel_all();
  if (begun_ && stream_) {
    exchange_->write(cat("data: ", error_json(error), "\n\n"));
    exchange_->end(false);
  } else {
    exchange_->respond(error_response(error));
  }
}

void GenerationRun::cancel_all() {
  for (size_t i = 0; i < records_.size(); ++i) context_->engine.cancel(engine_id(i));
}

}  // namespace tandem
