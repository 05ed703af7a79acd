#include "model/layers/attn_res.h"

#include "kernels/attn_res/attn_res.h"
#include "model/layers/rows.h"
#include "model/layers/wanted_rows.h"

namespace tandem {

ResidualStream::ResidualStream(const StepContext& step, MatrixView<float> embedded)
    : step_(step), num_rows_(num_rows(step)), mode_(step.config.attn_res_mode), running_(embedded) {
  sources_ = step.exec.arena.alloc<MatrixView<const float>>(step.config.max_attn_res_sources());
  if (mode_ == AttnResMode::kFull) push_source(embedded);
  if (mode_ != AttnResMode::kNone) mixed_ = fresh_rows();
  if (mode_ != AttnResMode::kFull) output_ = fresh_rows();
}

MatrixView<float> ResidualStream::fresh_rows() { return alloc_rows(step_, num_rows_, step_.config.hidden_size); }

Result<MatrixView<const float>> ResidualStream::attention_input(int64_t layer, const AttnResScoreWeight& weight) {
  Result<MatrixView<const float>> input = mix(weight);
  if (!input.is_ok() || mode_ != AttnResMode::kBlock) return input;
  if (layer % step_.config.attn_res_block_size == 0) {
    // The stored block keeps p's memory; the next output, in memory of its own, becomes the new p.
    push_source(running_);
    restart_ = true;
  }
  return input;
}

Result<MatrixView<const float>> ResidualStream::feed_forward_input(const AttnResScoreWeight& weight) {
  return mix(weight);
}

Result<MatrixView<const float>> ResidualStream::final_input(const AttnResScoreWeight& weight) { return mix(weight); }

Result<MatrixView<const float>> ResidualStream::mix(const AttnResScoreWeight& weight) {
  const size_t stored = num_sources_;
  if (mode_ == AttnResMode::kNone) return MatrixView<const float>(running_);
  if (mode_ == AttnResMode::kBlock) {
    if (stored == 0) return MatrixView<const float>(running_);
    push_source(running_);
  }
  const PhaseTimer timer(step_.times, Phase::kAttnRes);
  const Status status = attn_res_mix(step_.exec, {.sources = sources_.first(num_sources_),
                                                  .score_weight = as_vector(weight),
                                                  .eps = static_cast<float>(step_.config.rms_norm_eps),
                                                  .out = mixed_});
  num_sources_ = stored;
  TANDEM_RETURN_IF_ERROR(status);
  TANDEM_RETURN_IF_ERROR(round_activations(step_, mixed_));
  return MatrixView<const float>(mixed_);
}

void ResidualStream::keep_wanted_rows() {
  const PhaseTimer timer(step_.times, Phase::kAttnRes);
  num_rows_ = wanted_rows(step_.plan);
  for (auto& source : sources_.first(num_sources_)) source = gather_wanted_rows(step_, source);
  if (mode_ != AttnResMode::kFull) {
    running_ = gather_wanted_rows(step_, running_);
    output_ = output_.rows(0, num_rows_);
  }
  if (mode_ != AttnResMode::kNone) mixed_ = mixed_.rows(0, num_rows_);
}

MatrixView<float> ResidualStream::next_output() {
  if (mode_ == AttnResMode::kFull || restart_) return fresh_rows();
  return output_;
}

Status ResidualStream::add(const MatrixView<float>& output) {
  if (mode_ == AttnResMode::kFull) {
    push_source(output);
    return Status::ok();
  }
  if (restart_) {
    running_ = output;
    restart_ = false;
    return Status::ok();
  }
  const PhaseTimer timer(step_.times, Phase::kAttnRes);
  TANDEM_RETURN_IF_ERROR(tandem::add(step_.exec, {.a = running_, .b = output, .out = running_}));
  return round_activations(step_, running_);
}

MatrixView<const float> ResidualStream::current() const {
  if (mode_ == AttnResMode::kFull) return sources_[num_sources_ - 1];
  return running_;
}

}  // namespace tandem
