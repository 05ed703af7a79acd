// model/layers/attn_res.h: the residual stream of a step in its three forms.
//
//   none    x += sublayer(norm(x))
//   block   p: running sum inside the current block; R: stored block vectors. Sublayer input = mix(R, p). At a layer
//           whose index divides by the block size, after the attention mix and before the attention, the RAW p is
//           stored in R and p restarts as the attention output alone. The boundary counts layers, not sublayers.
//   full    every sublayer output is a source of its own; no running sum.
//   The mix never writes to p or to a stored block. Nothing here outlives the step: a token rebuilds its own depth.
//   Source: Attention Residuals report; model.md §3.3.
#pragma once

#include <span>

#include "model/forward.h"

namespace tandem {

class ResidualStream {
 public:
  // `embedded` [T, D] is source 0; its memory becomes the stream's.
  ResidualStream(const StepContext& step, MatrixView<float> embedded);

  // The input of the attention or feed-forward sublayer of `layer` (before its norm).
  Result<MatrixView<const float>> attention_input(int64_t layer, const AttnResScoreWeight& weight);
  Result<MatrixView<const float>> feed_forward_input(const AttnResScoreWeight& weight);
  // The input of the final norm.
  Result<MatrixView<const float>> final_input(const AttnResScoreWeight& weight);

  // Goes on with the rows whose logits the plan wants: every source and the running sum.
  void keep_wanted_rows();

  // Where the next sublayer writes its output [T, D]; add() then takes it into the stream.
  MatrixView<float> next_output();
  Status add(const MatrixView<float>& output);

  // The running sum, or the last source of the full form.
  MatrixView<const float> current() const;

 private:
  Result<MatrixView<const float>> mix(const AttnResScoreWeight& weight);
  MatrixView<float> fresh_rows();
  void push_source(const MatrixView<const float>& rows) { sources_[num_sources_++] = rows; }

  const StepContext& step_;
  int64_t num_rows_;
  AttnResMode mode_;
  std::span<MatrixView<const float>> sources_;  // block: R; full: every source so far; one more for p
  size_t num_sources_ = 0;
  MatrixView<float> running_;  // p; not used by the full form
  bool restart_ = false;       // p is the next output alone
  MatrixView<float> mixed_;    // output of the mix
  MatrixView<float> output_;   // sublayer output, reused
};

}  // namespace tandem
