// model/layers/kda_states.h: the KDA states of a step in one layer, as f32 working views cut into pieces.
//
//   A sequence's rows are cut at its captures, so that the state at an inner position can be copied out between two
//   pieces. Round r holds the r-th piece of every sequence that has one: pieces of a round are independent.
//   A bf16 cache is widened on entry and rounded on exit and at captures; an f32 cache is worked on in place.
#pragma once

#include <span>

#include "kernels/kda/kda.h"
#include "kernels/kda/short_conv.h"
#include "model/forward.h"

namespace tandem {

struct KdaPiece {
  int64_t sequence = 0;  // index into plan.sequences
  int64_t row_begin = 0;
  int64_t num_rows = 0;
};

class KdaStates {
 public:
  // Marks the states and captures as in flight; commit() gives them their new position.
  KdaStates(const StepContext& step, int64_t layer);

  int64_t num_rounds() const { return num_rounds_; }
  std::span<const KdaPiece> round(int64_t r) const;
  StepMode mode(const KdaPiece& piece) const;
  float* recurrent(const KdaPiece& piece) const { return working_[static_cast<size_t>(piece.sequence)].recurrent; }
  // [W−1, 3P] columns of q, k, v; those of stream 0 (q), 1 (k) or 2 (v): [W−1, P].
  MatrixView<float> conv_history(const KdaPiece& piece) const;
  MatrixView<float> conv_history(const KdaPiece& piece, int64_t stream) const;

  // Copies what the convolution or the recurrence has reached after round r into the captures that end there.
  void capture_conv(int64_t r) const;
  void capture_recurrent(int64_t r) const;
  // Writes back (bf16) and advances positions and versions, captures' included.
  void commit() const;

 private:
  struct Working {
    KdaState* cache = nullptr;
    int64_t position = 0;        // before the step
    float* recurrent = nullptr;  // [H, K, V]
    float* conv = nullptr;       // [W−1, 3P]
  };
  KdaState* capture_target(int64_t sequence, int64_t r) const;

  const StepContext& step_;
  int64_t layer_;
  int64_t recurrent_elements_;
  int64_t conv_rows_;
  int64_t conv_channels_;
  int64_t num_rounds_ = 0;
  std::span<Working> working_;
  std::span<KdaPiece> pieces_;
  std::span<int64_t> round_begin_;  // num_rounds + 1
};

}  // namespace tandem
