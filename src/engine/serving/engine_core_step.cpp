// One step of the engine: what is planned is computed, sampled, committed and noted for delivery.
#include <algorithm>

#include "base/cat.h"
#include "engine/serving/engine_core.h"

namespace tandem {
namespace {

constexpr int64_t kPrefillGrid = 16;  // where a prefill may begin without changing its bits

}  // namespace

bool EngineCore::compute_step() {
  const bool has_computed = scheduler_->has_work() ? compute_rows() : verify_without_work();
  report_refusals();
  if (has_computed) ++unaudited_steps_;
  const bool falls_idle = !has_computed && !scheduler_->has_work() && unaudited_steps_ > 0;
  if (options_.audit_steps > 0 && (unaudited_steps_ >= options_.audit_steps || falls_idle)) audit_cache();
  return has_computed;
}

bool EngineCore::verify_without_work() {
  if (!verifier_) return false;
  const bool is_quiet = now() - last_step_ >= options_.verify_quiet_seconds;
  return is_quiet ? verifier_->run_idle(scheduler_->step_time())
                  : verifier_->run_busy(counters_.compute_seconds, scheduler_->step_time());
}

bool EngineCore::compute_rows() {
  const SchedulerStep& step = scheduler_->plan(now());
  note_admitted(step);
  if (step.rows.empty()) return false;
  build_plan(step);
  const double begin = now();
  const Result<MatrixView<float>> logits = model_.model().forward(model_.exec(), plan_, views_);
  if (!logits.is_ok()) {
    fail_step(logits.status());
    return true;
  }
  sample_rows(logits.value());
  commit_rows(logits.value());
  last_step_ = now();
  const double seconds = last_step_ - begin;
  scheduler_->step_done(seconds);
  counters_.compute_seconds += seconds;
  count_step();
  apply_rows();
  if (verifier_) verifier_->run_busy(counters_.compute_seconds, scheduler_->step_time());
  return true;
}

void EngineCore::note_admitted(const SchedulerStep& step) {
  const double time = now();
  for (const SeqId id : step.admitted) {
    const SequenceOwner owner = owners_.at(id.value);
    ActiveRequest& request = *owner.request;
    const PrefixMatch& match = scheduler_->admitted_match(id);
    if (verifier_ && !request.request.prompt_logprobs) {
      // A request's first admission is the one whose hit it was told of, and whose prompt's logits are to come.
      verifier_->on_admitted(id, request.request.id, scheduler_->tokens(id), request.request.scope, match,
                             owner.candidate == nullptr && !request.is_admitted);
    }
    if (request.is_admitted) continue;
    request.is_admitted = true;
    request.times.scheduled = time;
    request.cached_tokens = match.hit_tokens;
    log_.note_match(request.request.id, match, std::move(request.request.prompt));
  }
}

void EngineCore::build_plan(const SchedulerStep& step) {
  plan_.tokens.clear();
  views_.clear();
  rows_.clear();
  plan_.sequences.resize(step.rows.size());
  int64_t logits_begin = 0;
  for (size_t i = 0; i < step.rows.size(); ++i) {
    StepRow& row = rows_.emplace_back();
    row.scheduled = step.rows[i];
    row.owner = owners_.at(row.scheduled.id.value);
    const ActiveRequest& request = *row.owner.request;
    ScheduledRows& scheduled = row.scheduled;
    // A prompt is prefill to its last row, even a lone one: warm and cold runs of it then are the same bits.
    const bool is_in_prompt = scheduled.begin < request.prompt_tokens;
    if (is_in_prompt && scheduled.begin % kPrefillGrid == 0) scheduled.mode = StepMode::kPrefill;
    const auto tokens = scheduler_->tokens(scheduled.id)
                            .subspan(static_cast<size_t>(scheduled.begin), static_cast<size_t>(scheduled.num_tokens));
    plan_.tokens.insert(plan_.tokens.end(), tokens.begin(), tokens.end());

    // Once: a prompt computed again, for a candidate that waited or was preempted, has told what it has to tell.
    const bool wants_prompt =
        request.request.prompt_logprobs && !request.is_prompt_done && scheduled.begin + 1 < request.prompt_tokens;
    SequenceStep& sequence = plan_.sequences[i];
    sequence.cache = static_cast<int64_t>(views_.size());
    sequence.num_tokens = scheduled.num_tokens;
    sequence.num_computed_tokens = scheduled.begin;
    sequence.mode = scheduled.mode;
    sequence.logits = wants_prompt ? LogitsWanted::kAll : scheduled.is_last ? LogitsWanted::kLast : LogitsWanted::kNone;
    sequence.captures.clear();
    views_.push_back(cache_->view(scheduled.id));
    for (const PlannedCapture& capture : cache_->captures(scheduled.id)) {
      sequence.captures.push_back({.num_tokens = capture.num_tokens, .cache = static_cast<int64_t>(views_.size())});
      views_.push_back(capture.view);
    }
    row.logits_begin = logits_begin;
    row.logits_count = wants_prompt ? scheduled.num_tokens : scheduled.is_last ? 1 : 0;
    logits_begin += row.logits_count;
  }
}

bool EngineCore::is_last_prompt_row(const StepRow& row) const {
  return row.owner.candidate == nullptr && row.scheduled.is_last;
}

// What a row with an error computed must never be found in the cache.
void EngineCore::commit_rows(const MatrixView<float>& logits) {
  size_t first_token = 0;
  for (StepRow& row : rows_) {
    const ScheduledRows& scheduled = row.scheduled;
    const auto tokens = std::span<const TokenId>(plan_.tokens).subspan(first_token, scheduled.num_tokens);
    first_token += tokens.size();
    if (!row.error.is_ok()) {
      cache_->abort_step(scheduled.id);
      continue;
    }
    row.error = cache_->commit_step(scheduled.id, tokens);
    if (!row.error.is_ok() || !verifier_) continue;
    verifier_->on_committed(scheduled.id, scheduler_->tokens(scheduled.id), scheduled.begin, scheduled.num_tokens,
                            scheduled.mode);
    if (is_last_prompt_row(row) && row.logits_count > 0) {
      verifier_->on_prompt_done(scheduled.id, scheduler_->tokens(scheduled.id), last_logits(row, logits));
    }
  }
}

void EngineCore::apply_rows() {
  size_t next_draw = 0;
  for (size_t i = 0; i < rows_.size(); ++i) {
    StepRow& row = rows_[i];
    const size_t first_draw = next_draw;
    while (next_draw < draws_.size() && draws_[next_draw].row == i) ++next_draw;
    if (!row.error.is_ok()) {
      fail_row(row);
    } else if (row.scheduled.is_last) {
      apply_draws(row, std::span(draws_).subspan(first_draw, next_draw - first_draw));
    }
  }
}

void EngineCore::apply_draws(StepRow& row, std::span<Draw> draws) {
  ActiveRequest& request = *row.owner.request;
  if (row.owner.candidate != nullptr) return accept(request, draws.front());
  request.is_prompt_done = true;
  counters_.prompt_tokens += request.prompt_tokens;
  if (request.max_new_tokens == 0) {
    for (Candidate& candidate : request.candidates) {
      if (shares_lead(candidate)) finish(request, candidate, EngineFinish::kLength, Status::ok());
    }
    return end_lead_without_candidates(request);
  }
  // Copies first: until a token is appended to the lead, its tokens are the prompt's, as each candidate wants them.
  const SeqId lead = row.scheduled.id;
  const Draw* heir = nullptr;
  for (Draw& draw : draws) {
    if (finish_of(request, *draw.candidate, draw.token)) continue;
    if (heir == nullptr) {
      heir = &draw;
      continue;
    }
    const SeqId copy = new_sequence(request, draw.candidate);
    draw.candidate->sequence = copy;
    if (verifier_) verifier_->on_forked(lead, copy);
    // Without room for a copy the candidate waits to compute the prompt again, and draws the same token then.
    if (!scheduler_->fork(lead, copy)) draw.candidate = nullptr;
  }
  if (heir != nullptr) {
    owners_.at(lead.value).candidate = heir->candidate;
    heir->candidate->sequence = lead;
    request.lead.reset();
  }
  for (const Draw& draw : draws) {
    if (draw.candidate != nullptr) accept(request, draw);
  }
  end_lead_without_candidates(request);
}

std::optional<EngineFinish> EngineCore::finish_of(const ActiveRequest& request, const Candidate& candidate,
                                                  TokenId token) const {
  const std::vector<TokenId>& stops = request.request.stop_tokens;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) return EngineFinish::kStop;
  if (candidate.num_generated + 1 >= request.max_new_tokens) return EngineFinish::kLength;
  return std::nullopt;
}

void EngineCore::accept(ActiveRequest& request, const Draw& draw) {
  Candidate& candidate = *draw.candidate;
  const std::optional<EngineFinish> how = finish_of(request, candidate, draw.token);
  candidate.sampler.accept(draw.token);
  ++candidate.num_generated;
  ++counters_.generated_tokens;
  if (request.times.first_token == 0) request.times.first_token = now();
  if (!how) scheduler_->append_token(*candidate.sequence, draw.token);
  Delivery& delivery = how ? finish(request, candidate, *how, Status::ok()) : deliveries_.emplace_back();
  delivery.request = &request;
  delivery.candidate = candidate.index;
  delivery.token = draw.token;
  delivery.logprob = draw.logprob;
  delivery.top_begin = draw.top_begin;
  delivery.top_count = draw.top_count;
}

void EngineCore::fail_row(const StepRow& row) {
  ActiveRequest& request = *row.owner.request;
  if (row.error.code() == StatusCode::kNonFinite && !request.request.prompt_logprobs) {
    // Where the first of these numbers arose is unknown: nothing of this prefix is given to anybody again.
    cache_->quarantine(scheduler_->tokens(row.scheduled.id), request.request.scope, 0);
  }
  if (row.owner.candidate != nullptr) {
    finish(request, *row.owner.candidate, EngineFinish::kError, row.error);
    return;
  }
  for (Candidate& candidate : request.candidates) {
    if (shares_lead(candidate)) finish(request, candidate, EngineFinish::kError, row.error);
  }
  end_lead_without_candidates(request);
}

void EngineCore::fail_step(const Status& why) {
  for (const StepRow& row : rows_) cache_->abort_step(row.scheduled.id);
  scheduler_->step_failed();
  for (StepRow& row : rows_) {
    row.error = Status(why.code(), cat("the step that computed it failed: ", why.message()));
    fail_row(row);
  }
  if (options_.on_event) options_.on_event({EventSeverity::kError, cat("a step failed: ", why.message())});
}

void EngineCore::count_step() {
  const auto rows = static_cast<int64_t>(plan_.tokens.size());
  ++counters_.steps;
  counters_.step_tokens += rows;
  const auto bound = std::lower_bound(kStepTokenBounds.begin(), kStepTokenBounds.end(), rows);
  ++counters_.steps_by_tokens[static_cast<size_t>(bound - kStepTokenBounds.begin())];
}

}  // namespace tandem
