#include "model/layers/kda_states.h"

#include <algorithm>

#include "tensor/stored_floats.h"

namespace tandem {
KdaStates::KdaStates(const StepContext& step, int64_t layer) : step_(step), layer_(layer) {
  const ModelConfig& config = step.config;
  recurrent_elements_ = config.kda_num_heads * config.kda_head_dim * config.kda_head_dim;
  conv_rows_ = config.short_conv_kernel_size - 1;
  conv_channels_ = 3 * config.kda_projection_size();
  const auto& sequences = step.plan.sequences;
  const auto num_sequences = static_cast<int64_t>(sequences.size());
  Arena& arena = step.exec.arena;

  working_ = arena.alloc<Working>(num_sequences);
  int64_t num_pieces = 0;
  for (int64_t s = 0; s < num_sequences; ++s) {
    const SequenceStep& sequence = sequences[static_cast<size_t>(s)];
    LayerCache& cache = step.caches[static_cast<size_t>(sequence.cache)].layers[static_cast<size_t>(layer)];
    Working& working = working_[static_cast<size_t>(s)];
    working = Working{.cache = &std::get<KdaState>(cache)};
    working.position = begin_kda_state(*working.cache);
    if (working.cache->dtype == DType::kF32) {
      working.recurrent = static_cast<float*>(working.cache->recurrent);
      working.conv = static_cast<float*>(working.cache->conv);
    } else {
      const std::span<float> recurrent = arena.alloc<float>(recurrent_elements_);
      const std::span<float> conv = arena.alloc<float>(conv_rows_ * conv_channels_);
      load_floats(working.cache->recurrent, working.cache->dtype, recurrent);
      load_floats(working.cache->conv, working.cache->dtype, conv);
      working.recurrent = recurrent.data();
      working.conv = conv.data();
    }
    const auto captures = static_cast<int64_t>(sequence.captures.size());
    for (int64_t i = 0; i < captures; ++i) begin_kda_state(*capture_target(s, i));
    const bool ends_on_capture = captures > 0 && sequence.captures.back().num_tokens == sequence.num_tokens;
    const int64_t rounds = captures + (ends_on_capture ? 0 : 1);
    num_rounds_ = std::max(num_rounds_, rounds);
    num_pieces += rounds;
  }

  pieces_ = arena.alloc<KdaPiece>(num_pieces);
  round_begin_ = arena.alloc<int64_t>(num_rounds_ + 1);
  int64_t next = 0;
  for (int64_t r = 0; r < num_rounds_; ++r) {
    round_begin_[static_cast<size_t>(r)] = next;
    int64_t sequence_begin = 0;
    for (int64_t s = 0; s < num_sequences; ++s) {
      const SequenceStep& sequence = sequences[static_cast<size_t>(s)];
      const auto captures = static_cast<int64_t>(sequence.captures.size());
      const auto boundary = [&](int64_t i) {
        return i < captures ? sequence.captures[static_cast<size_t>(i)].num_tokens : sequence.num_tokens;
      };
      const int64_t begin = r == 0 ? 0 : boundary(r - 1);
      if (begin < sequence.num_tokens) {
        pieces_[static_cast<size_t>(next++)] =
            KdaPiece{.sequence = s, .row_begin = sequence_begin + begin, .num_rows = boundary(r) - begin};
      }
      sequence_begin += sequence.num_tokens;
    }
  }
  round_begin_[static_cast<size_t>(num_rounds_)] = next;
}

std::span<const KdaPiece> KdaStates::round(int64_t r) const {
  const int64_t begin = round_begin_[static_cast<size_t>(r)];
  const int64_t end = round_begin_[static_cast<size_t>(r + 1)];
  return pieces_.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

StepMode KdaStates::mode(const KdaPiece& piece) const {
  return step_.plan.sequences[static_cast<size_t>(piece.sequence)].mode;
}

MatrixView<float> KdaStates::conv_history(const KdaPiece& piece) const {
  return MatrixView<float>::contiguous(working_[static_cast<size_t>(piece.sequence)].conv,
                                       {conv_rows_, conv_channels_});
}

MatrixView<float> KdaStates::conv_history(const KdaPiece& piece, int64_t stream) const {
  const int64_t width = conv_channels_ / 3;
  return conv_history(piece).columns(stream * width, width);
}

KdaState* KdaStates::capture_target(int64_t sequence, int64_t r) const {
  const auto& captures = step_.plan.sequences[static_cast<size_t>(sequence)].captures;
  if (r >= static_cast<int64_t>(captures.size())) return nullptr;
  const int64_t cache = captures[static_cast<size_t>(r)].cache;
  return &std::get<KdaState>(step_.caches[static_cast<size_t>(cache)].layers[static_cast<size_t>(layer_)]);
}

void KdaStates::capture_conv(int64_t r) const {
  for (const KdaPiece& piece : round(r)) {
    if (KdaState* target = capture_target(piece.sequence, r)) {
      const float* conv = working_[static_cast<size_t>(piece.sequence)].conv;
      store_floats({conv, static_cast<size_t>(conv_rows_ * conv_channels_)}, target->dtype, target->conv);
    }
  }
}

void KdaStates::capture_recurrent(int64_t r) const {
  for (const KdaPiece& piece : round(r)) {
    if (KdaState* target = capture_target(piece.sequence, r)) {
      store_floats({recurrent(piece), static_cast<size_t>(recurrent_elements_)}, target->dtype, target->recurrent);
    }
  }
}

void KdaStates::commit() const {
  for (size_t s = 0; s < working_.size(); ++s) {
    const SequenceStep& sequence = step_.plan.sequences[s];
    const Working& working = working_[s];
    if (working.cache->dtype != DType::kF32) {
      store_floats({working.recurrent, static_cast<size_t>(recurrent_elements_)}, working.cache->dtype,
                   working.cache->recurrent);
      store_floats({working.conv, static_cast<size_t>(conv_rows_ * conv_channels_)}, working.cache->dtype,
                   working.cache->conv);
    }
    append_kda_state(*working.cache, working.position, sequence.num_tokens);
    for (size_t i = 0; i < sequence.captures.size(); ++i) {
      append_kda_state(*capture_target(static_cast<int64_t>(s), static_cast<int64_t>(i)), working.position,
                       sequence.captures[i].num_tokens);
    }
  }
}

}  // namespace tandem
