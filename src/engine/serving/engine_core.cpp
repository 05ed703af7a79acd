#include "engine/serving/engine_core.h"

#include <algorithm>
#include <array>

#include "base/cat.h"
#include "engine/memory_info.h"
#include "sample/philox.h"
#include "tensor/dtype.h"

namespace tandem {
namespace {

constexpr int64_t kMaxCandidates = 128;
// The limit is held at submit(), by a count that may be a step old.
constexpr int64_t kMaxWaitingBeyond = 256;

Result<int64_t> cache_budget(const ServingOptions& options) {
  if (options.cache_bytes) return *options.cache_bytes;
  const int64_t available = available_memory_bytes();
  if (available == 0) return Status::invalid("cache size: the free memory is unknown here, so the size must be given");
  return available / 2;
}

HybridCacheOptions cache_options(const LoadedModel& model, const ServingOptions& options, int64_t budget_bytes) {
  HybridCacheOptions out;
  out.hash_unit = options.hash_unit;
  out.budget_bytes = budget_bytes;
  out.checkpoint_interval = options.checkpoint_interval;
  out.checkpoints_per_chain = options.checkpoints_per_chain;
  out.identity = cat(model.dir(), "|", dtype_name(model.cache_layout().dtype));
  out.share_prefixes = options.share_prefixes;
  out.share_generated = !options.deterministic;
  out.poison = options.poison;
  if (const Result<const Tokenizer*> tokenizer = model.tokenizer(); tokenizer.is_ok()) {
    for (const std::string_view name : {"<|end_of_msg|>", "<|im_end|>"}) {
      if (!out.message_end) out.message_end = tokenizer.value()->control_id(name);
    }
  }
  return out;
}

Status check_options(const ServingOptions& options) {
  std::string problems;
  const auto expect = [&](bool is_right, const std::string& problem) {
    if (!is_right) problems += cat(problems.empty() ? "" : "\n", problem);
  };
  expect(options.verify_rate >= 0 && options.verify_rate <= 1,
         cat("verify rate is ", options.verify_rate, ", expected a share in [0, 1]"));
  expect(options.verify_busy_share >= 0 && options.verify_busy_share <= 1,
         cat("verify busy share is ", options.verify_busy_share, ", expected a share in [0, 1]"));
  expect(options.verify_quiet_seconds >= 0,
         cat("verify quiet time is ", options.verify_quiet_seconds, " s, expected at least 0"));
  expect(options.swap_bytes >= 0, cat("swap space is ", options.swap_bytes, " bytes, expected at least 0"));
  expect(options.remembered_requests >= 0 && options.remembered_tokens >= 0,
         "remembered requests and tokens: expected at least 0");
  expect(options.audit_steps >= 0, cat("audit steps is ", options.audit_steps, ", expected at least 0"));
  expect(!options.context_limit || *options.context_limit >= 2, "context limit: expected at least 2 tokens");
  return problems.empty() ? Status::ok() : Status::invalid(problems);
}

// Candidate 0 draws what the request would draw alone; the others from streams that the seed determines.
uint64_t candidate_seed(uint64_t seed, int64_t candidate) {
  if (candidate == 0) return seed;
  const std::array<uint32_t, 4> bits = philox4x32({static_cast<uint32_t>(candidate), 0, 0, 1},
                                                  {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return (uint64_t{bits[1]} << 32) | bits[0];
}

}  // namespace

Result<std::unique_ptr<EngineCore>> EngineCore::create(LoadedModel& model, const ServingOptions& options,
                                                       RequestLog& log) {
  TANDEM_RETURN_IF_ERROR(check_options(options));
  const Result<int64_t> budget = cache_budget(options);
  if (!budget.is_ok()) return budget.status();
  Result<std::unique_ptr<HybridCache>> cache =
      HybridCache::create(model.cache_layout(), cache_options(model, options, budget.value()));
  if (!cache.is_ok()) return cache.status();
  auto core = std::unique_ptr<EngineCore>(new EngineCore(model, options, log, std::move(cache).value()));
  if (core->context_limit_ < 2) {
    return Status::exhausted(cat("a cache of ", budget.value(), " bytes holds sequences of ", core->context_limit_,
                                 " tokens, expected at least 2"));
  }
  return core;
}

EngineCore::EngineCore(LoadedModel& model, const ServingOptions& options, RequestLog& log,
                       std::unique_ptr<HybridCache> cache)
    : model_(model),
      options_(options),
      log_(log),
      cache_(std::move(cache)),
      memory_(*cache_, options.swap_bytes),
      scratch_(static_cast<size_t>(model.exec().pool.num_threads())) {
  constexpr size_t kStopTokens = 64;
  for (SampleScratch& scratch : scratch_) {  // any thread may make a request's first draw, in a step that is warm
    scratch.sampler.reserve(model.config().vocab_size);
    scratch.top.reserve(static_cast<size_t>(model.config().vocab_size));
    scratch.stop_logits.reserve(kStopTokens);
  }
  SchedulerOptions scheduler = options.scheduler;
  scheduler.max_waiting += kMaxWaitingBeyond;
  scheduler.replay_generated = options.deterministic;
  scheduler_ = std::make_unique<Scheduler>(scheduler, memory_);
  context_limit_ = std::min({model.context_limit(), options.context_limit.value_or(model.context_limit()),
                             scheduler_->max_sequence_tokens()});
  if (options.verify_rate > 0 && options.share_prefixes) {
    verifier_ = std::make_unique<Verifier>(model, *cache_, options,
                                           [this](const std::string& problem) { report_problem(problem); });
    memory_.set_lender(verifier_.get());
  }
}

EngineCore::~EngineCore() = default;

Status EngineCore::check(const EngineRequest& request) const {
  const int64_t vocab = model_.config().vocab_size;
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (request.id.empty()) return Status::invalid("the request has no id");
  if (length == 0) return Status::invalid("the prompt is empty: expected at least one token");
  if (length >= context_limit_) {
    return Status::invalid(cat("the prompt has ", length, " tokens and the context holds ", context_limit_,
                               ": expected at most ", context_limit_ - 1, ", to leave room for one more"));
  }
  const auto check_tokens = [&](const char* what, const std::vector<TokenId>& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i].value >= 0 && tokens[i].value < vocab) continue;
      return Status::invalid(cat(what, " token ", i, " is ", tokens[i].value, ", expected an id in 0..", vocab - 1));
    }
    return Status::ok();
  };
  TANDEM_RETURN_IF_ERROR(check_tokens("prompt", request.prompt));
  TANDEM_RETURN_IF_ERROR(check_tokens("stop", request.stop_tokens));
  if (request.num_candidates < 1 || request.num_candidates > kMaxCandidates) {
    return Status::invalid(cat("candidates: ", request.num_candidates, ", expected 1..", kMaxCandidates));
  }
  const int64_t least = request.prompt_logprobs ? 0 : 1;  // a prompt may be scored and not continued
  if (request.max_tokens < least) {
    return Status::invalid(cat("max tokens is ", request.max_tokens, ", expected at least ", least));
  }
  if (request.min_tokens < 0 || request.min_tokens > request.max_tokens) {
    return Status::invalid(cat("min tokens is ", request.min_tokens, ", expected 0..", request.max_tokens));
  }
  if (request.logprobs && (*request.logprobs < 0 || *request.logprobs > kMaxLogprobs)) {
    return Status::invalid(cat("logprobs is ", *request.logprobs, ", expected 0..", kMaxLogprobs));
  }
  return request.sampling.validate(vocab);
}

void EngineCore::start(EngineRequest request, OutputSink sink, double arrived) {
  auto active = std::make_unique<ActiveRequest>();
  active->prompt_tokens = static_cast<int64_t>(request.prompt.size());
  active->max_new_tokens = std::min(request.max_tokens, context_limit_ - active->prompt_tokens);
  active->times.arrived = arrived;
  active->num_open = request.num_candidates;
  if (request.prompt_logprobs) {
    active->prompt_outputs.resize(request.prompt.size());
    active->prompt_outputs[0].token = request.prompt[0];  // nothing says how probable it is
  }
  const uint64_t seed = request.sampling.seed ? *request.sampling.seed : random_seed();
  for (int64_t i = 0; i < request.num_candidates; ++i) {
    SamplingParams params = request.sampling;
    params.seed = candidate_seed(seed, i);
    Result<Sampler> sampler = Sampler::create(std::move(params), model_.config().vocab_size, seed);
    TANDEM_CHECK(sampler.is_ok() && sampler.value().note_prompt(request.prompt).is_ok(), "the request was checked");
    active->candidates.push_back({.index = i,
                                  .sampler = std::move(sampler).value(),
                                  .sequence = std::nullopt,
                                  .num_generated = 0,
                                  .is_finished = false});
  }
  NewSequence sequence;
  // The tokens to come have their room before the first step, within reason.
  sequence.tokens.reserve(request.prompt.size() + static_cast<size_t>(std::min<int64_t>(active->max_new_tokens, 8192)));
  sequence.tokens.assign(request.prompt.begin(), request.prompt.end());
  sequence.scope = request.scope;
  sequence.priority = request.priority;
  sequence.max_new_tokens = active->max_new_tokens;
  sequence.arrived = arrived;
  sequence.share_prefix = !request.prompt_logprobs;
  active->request = std::move(request);
  active->sink = std::move(sink);

  ActiveRequest& added = *active;
  requests_.emplace(added.request.id, std::move(active));
  added.lead = new_sequence(added, nullptr);
  sequence.id = *added.lead;
  if (Status status = scheduler_->add(std::move(sequence)); !status.is_ok()) {
    owners_.erase(added.lead->value);
    added.lead.reset();
    for (Candidate& candidate : added.candidates) finish(added, candidate, EngineFinish::kError, status);
  }
}

SeqId EngineCore::new_sequence(ActiveRequest& request, Candidate* candidate) {
  do {
    // The highest ids are the verifier's.
    last_sequence_ = last_sequence_ >= kFirstVerifierSequence - 1 ? 1 : last_sequence_ + 1;
  } while (owners_.contains(last_sequence_));
  owners_.emplace(last_sequence_, SequenceOwner{.request = &request, .candidate = candidate});
  return SeqId(last_sequence_);
}

void EngineCore::drop_sequence(SeqId id) {
  scheduler_->remove(id);
  owners_.erase(id.value);
  if (verifier_) verifier_->forget(id);
}

EngineCore::Delivery& EngineCore::finish(ActiveRequest& request, Candidate& candidate, EngineFinish how, Status error) {
  TANDEM_CHECK(!candidate.is_finished, "a candidate finishes once");
  candidate.is_finished = true;
  --request.num_open;
  if (request.num_open == 0) request.times.finished = now();
  if (candidate.sequence) drop_sequence(*candidate.sequence);
  candidate.sequence.reset();
  Delivery& delivery = deliveries_.emplace_back();
  delivery.request = &request;
  delivery.candidate = candidate.index;
  delivery.finish = how;
  delivery.error = std::move(error);
  return delivery;
}

void EngineCore::end_lead_without_candidates(ActiveRequest& request) {
  if (!request.lead || std::any_of(request.candidates.begin(), request.candidates.end(), shares_lead)) return;
  drop_sequence(*request.lead);
  request.lead.reset();
}

void EngineCore::cancel(const std::string& id, std::optional<int64_t> candidate) {
  const auto at = requests_.find(id);
  if (at == requests_.end()) return;
  ActiveRequest& request = *at->second;
  for (Candidate& each : request.candidates) {
    if (each.is_finished || (candidate && *candidate != each.index)) continue;
    finish(request, each, EngineFinish::kAbort, Status::ok());
  }
  end_lead_without_candidates(request);
}

void EngineCore::end_all(EngineFinish how, const Status& why) {
  for (auto& [id, request] : requests_) {
    for (Candidate& candidate : request->candidates) {
      if (!candidate.is_finished) finish(*request, candidate, how, why);
    }
    end_lead_without_candidates(*request);
  }
}

void EngineCore::deliver() {
  for (Delivery& delivery : deliveries_) {
    ActiveRequest& request = *delivery.request;
    EngineOutput output;
    output.candidate = delivery.candidate;
    if (delivery.token) {
      const auto top = tops_.begin() + static_cast<ptrdiff_t>(delivery.top_begin);
      output.tokens.push_back({.token = *delivery.token,
                               .logprob = delivery.logprob,
                               .top = {top, top + static_cast<ptrdiff_t>(delivery.top_count)}});
    }
    if (request.is_prompt_done && !request.is_prompt_delivered) {
      request.is_prompt_delivered = true;
      output.prompt = std::move(request.prompt_outputs);
    }
    output.finish = delivery.finish;
    output.error = std::move(delivery.error);
    output.cached_tokens = request.cached_tokens;
    output.times = request.times;
    if (delivery.finish) output.times.finished = now();
    request.sink(std::move(output));
  }
  for (const Delivery& delivery : deliveries_) {
    if (!delivery.finish || delivery.request == nullptr || delivery.request->num_open > 0) continue;
    ActiveRequest* const done = delivery.request;
    for (Delivery& other : deliveries_) {
      if (other.request == done) other.request = nullptr;
    }
    const std::string id = done->request.id;
    log_.close(id);
    requests_.erase(id);
  }
  deliveries_.clear();
  tops_.clear();
}

}  // namespace tandem
