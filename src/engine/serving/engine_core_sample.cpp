// The logits of a step's rows become tokens. Rows are independent, and the pool's threads share them: over a large
// vocabulary the draws of many replies are work that a step would otherwise wait for.
#include "engine/serving/engine_core.h"
#include "sample/logprobs.h"

namespace tandem {
namespace {

// Far below every real logit, and far enough from the end of f32 for penalties and temperatures.
constexpr float kNeverDrawn = -1e30f;

std::span<float> logits_row(const MatrixView<float>& logits, int64_t row) {
  return {logits.row(row), static_cast<size_t>(logits.shape[1])};
}

}  // namespace

std::span<float> EngineCore::last_logits(const StepRow& row, const MatrixView<float>& logits) {
  return logits_row(logits, row.logits_begin + row.logits_count - 1);
}

void EngineCore::sample_rows(const MatrixView<float>& logits) {
  draws_.clear();
  for (size_t i = 0; i < rows_.size(); ++i) {
    StepRow& row = rows_[i];
    if (row.logits_count > 1 || (row.logits_count == 1 && !row.scheduled.is_last)) {
      row.error = read_prompt_logprobs(row, logits);
    }
    plan_draws(i);
  }
  model_.exec().pool.parallel_for(static_cast<int64_t>(rows_.size()), [&](int64_t i, int thread) {
    StepRow& row = rows_[static_cast<size_t>(i)];
    if (row.error.is_ok() && row.scheduled.is_last) {
      row.error = sample_row(row, logits, scratch_[static_cast<size_t>(thread)]);
    }
  });
}

// Room for a row's draws and their alternatives, so that whichever thread makes them writes what is its own.
void EngineCore::plan_draws(size_t index) {
  StepRow& row = rows_[index];
  row.draws_begin = row.draws_end = draws_.size();
  if (!row.error.is_ok() || !row.scheduled.is_last) return;
  ActiveRequest& request = *row.owner.request;
  const auto add = [&](Candidate& candidate) {
    Draw& draw = draws_.emplace_back();
    draw.row = index;
    draw.candidate = &candidate;
    draw.top_begin = tops_.size();
    tops_.resize(tops_.size() + static_cast<size_t>(request.request.logprobs.value_or(0)));
  };
  if (row.owner.candidate != nullptr) {
    add(*row.owner.candidate);
  } else if (request.max_new_tokens > 0) {
    for (Candidate& candidate : request.candidates) {
      if (shares_lead(candidate)) add(candidate);
    }
  }
  row.draws_end = draws_.size();
}

// Row i of the prompt says how probable token i + 1 is.
Status EngineCore::read_prompt_logprobs(const StepRow& row, const MatrixView<float>& logits) {
  ActiveRequest& request = *row.owner.request;
  const std::span<const TokenId> tokens = scheduler_->tokens(row.scheduled.id);
  std::vector<TokenLogprob>& top = scratch_.front().top;
  for (int64_t i = 0; i < row.logits_count; ++i) {
    const int64_t position = row.scheduled.begin + i + 1;
    if (position >= request.prompt_tokens) break;
    const std::span<const float> values = logits_row(logits, row.logits_begin + i);
    TokenOutput& output = request.prompt_outputs[static_cast<size_t>(position)];
    output.token = tokens[static_cast<size_t>(position)];
    const Result<float> logprob = token_logprob(values, output.token, request.request.logprobs.value_or(0), top);
    if (!logprob.is_ok()) return logprob.status();
    output.logprob = logprob.value();
    output.top.assign(top.begin(), top.end());
  }
  return Status::ok();
}

// Any thread of the pool: writes the row's draws and their alternatives, and its logits for a moment.
Status EngineCore::sample_row(const StepRow& row, const MatrixView<float>& logits, SampleScratch& scratch) {
  const std::span<float> last = last_logits(row, logits);
  if (row.draws_begin == row.draws_end) return check_finite(last);
  for (size_t i = row.draws_begin; i < row.draws_end; ++i) {
    TANDEM_RETURN_IF_ERROR(sample_candidate(row.owner.request->request, draws_[i], last, scratch));
  }
  return Status::ok();
}

Status EngineCore::sample_candidate(const EngineRequest& request, Draw& draw, std::span<float> logits,
                                    SampleScratch& scratch) {
  const Candidate& candidate = *draw.candidate;
  const bool must_go_on = candidate.num_generated < request.min_tokens;
  scratch.stop_logits.clear();
  if (must_go_on) {
    TANDEM_RETURN_IF_ERROR(check_finite(logits));
    for (const TokenId stop : request.stop_tokens) {
      float& logit = logits[static_cast<size_t>(stop.value)];
      scratch.stop_logits.push_back(logit);
      logit = kNeverDrawn;
    }
  }
  const Result<TokenId> token = candidate.sampler.sample(logits, scratch.sampler);
  // Backwards: a token listed twice gets its first value back.
  for (size_t i = scratch.stop_logits.size(); i-- > 0;) {
    logits[static_cast<size_t>(request.stop_tokens[i].value)] = scratch.stop_logits[i];
  }
  if (!token.is_ok()) return token.status();
  draw.token = token.value();
  if (!request.logprobs) return Status::ok();
  const Result<float> logprob = token_logprob(logits, draw.token, *request.logprobs, scratch.top);
  if (!logprob.is_ok()) return logprob.status();
  draw.logprob = logprob.value();
  draw.top_count = scratch.top.size();
  std::copy(scratch.top.begin(), scratch.top.end(), tops_.begin() + static_cast<ptrdiff_t>(draw.top_begin));
  return Status::ok();
}

}  // namespace tandem
