// engine/serving/active_request.h: a request on its way through the engine. Plain data of the engine's thread.
//
//   The prompt of all candidates is computed once, by the lead sequence. When its last row is there, every candidate
//   draws its first token from the same logits; those that go on get a sequence of their own, the first of them the
//   lead's.
#pragma once

#include <optional>
#include <vector>

#include "engine/service.h"

namespace tandem {

struct Candidate {
  int64_t index = 0;
  Sampler sampler;
  std::optional<SeqId> sequence;  // none: the lead's is still computing the prompt, or it is finished
  int64_t num_generated = 0;
  bool is_finished = false;
};

struct ActiveRequest {
  EngineRequest request;  // its prompt is with the scheduler and the log
  OutputSink sink;
  int64_t prompt_tokens = 0;
  int64_t max_new_tokens = 0;  // of a candidate, after the context's limit
  std::vector<Candidate> candidates;
  std::optional<SeqId> lead;
  int64_t num_open = 0;  // candidates not finished
  bool is_admitted = false;
  bool is_prompt_done = false;
  bool is_prompt_delivered = false;
  std::vector<TokenOutput> prompt_outputs;  // with prompt_logprobs
  int64_t cached_tokens = 0;
  RequestTimes times;
};

// Who a sequence computes for.
struct SequenceOwner {
  ActiveRequest* request = nullptr;
  Candidate* candidate = nullptr;  // null: it is the lead
};

}  // namespace tandem
