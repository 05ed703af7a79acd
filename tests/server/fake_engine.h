// tests/server/fake_engine.h: an EngineService that plays scripts of tokens, a step at a time, on the caller's thread.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/service.h"

namespace tandem::test {

class FakeEngine : public EngineService {
 public:
  struct Cancel {
    std::string id;
    std::optional<int64_t> candidate;
  };
  struct Reply {
    std::vector<TokenId> tokens;
    EngineFinish end = EngineFinish::kLength;  // behind the last token, unless a stop token or the limit came before
    Status error = Status();                   // kError's
  };

  // What candidate `i` of every request says.
  std::function<Reply(const EngineRequest&, int64_t)> script = [](const EngineRequest&, int64_t) { return Reply(); };
  size_t tokens_per_output = 1;
  int64_t cached_tokens = 0;
  Status refusal;  // of the next submits
  std::function<float(TokenId)> logprob_of = [](TokenId id) { return -0.25f * static_cast<float>(id.value % 8 + 1); };
  ModelFacts model_facts{4096, 0, 128};
  EngineHealth engine_health{0.0, true, false, ""};
  std::function<Result<CacheExplanation>(const std::string&, const std::string&)> on_explain =
      [](const std::string&, const std::string&) -> Result<CacheExplanation> {
    return Status::not_found("no such request");
  };
  std::function<Result<CacheExplanation>(const std::vector<TokenId>&, const CacheScope&)> on_lint =
      [](const std::vector<TokenId>&, const CacheScope&) -> Result<CacheExplanation> {
    return Status::not_found("none");
  };

  std::vector<EngineRequest> submitted;
  std::vector<Cancel> cancelled;

  Status submit(EngineRequest request, OutputSink sink) override {
    if (!refusal.is_ok()) return refusal;
    submitted.push_back(request);
    Live& live = live_.emplace_back();
    for (int64_t i = 0; i < request.num_candidates; ++i)
      live.candidates.push_back({script(request, i), 0, false, false});
    live.request = std::move(request);
    live.sink = std::move(sink);
    return Status::ok();
  }

  void cancel(const std::string& id, std::optional<int64_t> candidate) override {
    cancelled.push_back({id, candidate});
    for (Live& live : live_) {
      if (live.request.id != id) continue;
      for (size_t i = 0; i < live.candidates.size(); ++i) {
        if (!candidate || *candidate == static_cast<int64_t>(i)) live.candidates[i].is_cancelled = true;
      }
    }
  }

  Result<CacheExplanation> explain(const std::string& id, const std::string& owner) override {
    return on_explain(id, owner);
  }
  Result<CacheExplanation> lint(std::vector<TokenId> prompt, const CacheScope& scope) override {
    return on_lint(prompt, scope);
  }
  EngineMetrics metrics() const override { return {}; }
  EngineHealth health() const override { return engine_health; }
  ModelFacts facts() const override { return model_facts; }
  void drain(double) override {}

  // One output of every live candidate, candidates of all requests in turn. False when nothing lives.
  bool step() {
    for (size_t i = 0; i < live_.size(); ++i) {
      for (size_t c = 0; c < live_[i].candidates.size(); ++c) step_one(live_[i], c);
    }
    std::erase_if(live_, [](const Live& live) {
      return std::all_of(live.candidates.begin(), live.candidates.end(), [](const Candidate& c) { return c.is_done; });
    });
    return !live_.empty();
  }
  size_t num_live() const { return live_.size(); }

 private:
  struct Candidate {
    Reply reply;
    size_t at = 0;
    bool is_cancelled = false;
    bool is_done = false;
  };
  struct Live {
    EngineRequest request;
    OutputSink sink;
    std::vector<Candidate> candidates;
    bool told_prompt = false;
  };

  TokenOutput token_output(const EngineRequest& request, TokenId id) const {
    TokenOutput out{id, std::nullopt, {}};
    if (!request.logprobs) return out;
    out.logprob = logprob_of(id);
    for (int32_t k = 0; k < *request.logprobs; ++k) {
      const TokenId other(static_cast<int32_t>((id.value + k) % model_facts.vocab_size));
      out.top.push_back({other, logprob_of(id) - static_cast<float>(k)});
    }
    return out;
  }

  void step_one(Live& live, size_t index) {
    Candidate& candidate = live.candidates[index];
    if (candidate.is_done) return;
    EngineOutput output;
    output.candidate = static_cast<int64_t>(index);
    output.cached_tokens = cached_tokens;
    if (live.request.prompt_logprobs && candidate.at == 0) {
      for (const TokenId id : live.request.prompt) output.prompt.push_back(token_output(live.request, id));
      output.prompt[0].logprob.reset();
      output.prompt[0].top.clear();
    }
    const std::vector<TokenId>& stops = live.request.stop_tokens;
    for (size_t k = 0; k < tokens_per_output && !output.finish && !candidate.is_cancelled; ++k) {
      if (candidate.at == candidate.reply.tokens.size()) break;
      const TokenId id = candidate.reply.tokens[candidate.at++];
      output.tokens.push_back(token_output(live.request, id));
      const bool is_stop = std::find(stops.begin(), stops.end(), id) != stops.end();
      if (is_stop && static_cast<int64_t>(candidate.at) > live.request.min_tokens) {
        output.finish = EngineFinish::kStop;
      } else if (static_cast<int64_t>(candidate.at) == live.request.max_tokens) {
        output.finish = EngineFinish::kLength;
      }
    }
    if (candidate.is_cancelled) {
      output.finish = EngineFinish::kAbort;
    } else if (!output.finish && candidate.at == candidate.reply.tokens.size()) {
      output.finish = candidate.reply.end;
      output.error = candidate.reply.error;
    }
    candidate.is_done = output.finish.has_value();
    live.sink(std::move(output));
  }

  std::vector<Live> live_;
};

}  // namespace tandem::test
