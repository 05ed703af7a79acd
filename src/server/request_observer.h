// server/request_observer.h: what the API tells of its requests, for whoever counts them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/service.h"

namespace tandem {

enum class RequestEnd { kStop, kLength, kAbort, kError };

struct RequestRecord {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t generated_tokens = 0;  // of all candidates
  int64_t max_tokens = 0;
  int64_t num_candidates = 1;
  std::vector<RequestEnd> ends;  // one a candidate; a reply that ended with tool calls is kStop
  RequestTimes times;
};

class RequestObserver {
 public:
  virtual ~RequestObserver() = default;
  // `num_tokens` of one candidate arrived, this long after its tokens before. Any thread.
  virtual void on_tokens(double seconds_since_last, int64_t num_tokens) = 0;
  // Once for each prompt the engine took, when its last candidate ended. Any thread.
  virtual void on_finished(const RequestRecord& record) = 0;
};

}  // namespace tandem
