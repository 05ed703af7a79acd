#include "model/layers/kda.h"

#include <array>
#include <cmath>

#include "kernels/elementwise/elementwise.h"
#include "kernels/kda/kda.h"
#include "kernels/kda/kda_decode.h"
#include "kernels/kda/short_conv.h"
#include "kernels/linear/linear.h"
#include "kernels/norm/norm.h"
#include "model/layers/kda_states.h"
#include "model/layers/rows.h"
#include "model/layers/wanted_rows.h"

namespace tandem {
namespace {

constexpr float kL2NormEps = 1e-6f;  // added to the sum of squares

float output_scale(const ModelConfig& config) { return 1.f / std::sqrt(static_cast<float>(config.kda_head_dim)); }

std::optional<float> lower_bound(const ModelConfig& config) {
  if (!config.gate_lower_bound) return std::nullopt;
  return static_cast<float>(*config.gate_lower_bound);
}

// What the projections give, [T, …]. q, k and v are three matrices in one allocation, so that the heads of q and k
// are consecutive rows for the normalisation.
struct Projected {
  MatrixView<float> q, k, v;  // [T, P]
  MatrixView<float> z;        // [T, P] decay-gate input
  MatrixView<float> beta;     // [T, H] logit, then σ
  MatrixView<float> gate;     // [rows of y, P] output gate
};

Result<Projected> project(const StepContext& step, const KdaLayerWeights& weights, const MatrixView<const float>& x,
                          int64_t gate_rows) {
  const int64_t rows = num_rows(step);
  const int64_t width = step.config.kda_projection_size();
  Projected p;
  const MatrixView<float> qkv = alloc_rows(step, 3 * rows, width);
  p.q = qkv.rows(0, rows);
  p.k = qkv.rows(rows, rows);
  p.v = qkv.rows(2 * rows, rows);
  p.z = alloc_rows(step, rows, width);
  p.beta = alloc_rows(step, rows, step.config.kda_num_heads);
  p.gate = alloc_rows(step, gate_rows, width);
  const MatrixView<float> decay_low = alloc_rows(step, rows, weights.f_a_proj.rows);

  const bool full_rank_gate = !weights.g_proj.empty();
  const MatrixView<float> gate_low = full_rank_gate ? p.gate : alloc_rows(step, gate_rows, weights.g_a_proj.rows);
  const std::array<LinearOutput, 6> outputs = {{{weights.q_proj, p.q},
                                                {weights.k_proj, p.k},
                                                {weights.v_proj, p.v},
                                                {weights.f_a_proj, decay_low},
                                                {weights.b_proj, p.beta},
                                                {full_rank_gate ? weights.g_proj : weights.g_a_proj, gate_low}}};
  if (gate_rows == rows) {
    TANDEM_RETURN_IF_ERROR(project(step, x, outputs));
  } else {
    const std::span<const LinearOutput> all(outputs);
    TANDEM_RETURN_IF_ERROR(project(step, x, all.first(5)));
    TANDEM_RETURN_IF_ERROR(project(step, gather_wanted_rows(step, x), all.last(1)));
  }
  for (const LinearOutput& output : outputs) TANDEM_RETURN_IF_ERROR(round_activations(step, output.y));

  const std::array<LinearOutput, 1> decay = {{{weights.f_b_proj, p.z}}};
  TANDEM_RETURN_IF_ERROR(project(step, decay_low, decay));
  TANDEM_RETURN_IF_ERROR(round_activations(step, p.z));
  if (!full_rank_gate) {
    const std::array<LinearOutput, 1> gate = {{{weights.g_b_proj, p.gate}}};
    TANDEM_RETURN_IF_ERROR(project(step, gate_low, gate));
    TANDEM_RETURN_IF_ERROR(round_activations(step, p.gate));
  }
  return p;
}

// q, k, v ← silu(conv(q, k, v)), each from its own history.
Status convolve(const StepContext& step, const KdaLayerWeights& weights, const KdaStates& states, const Projected& p) {
  const int64_t width = step.config.kda_projection_size();
  const auto taps =
      MatrixView<const float>::contiguous(weights.conv_weight.data(), {3 * width, step.config.short_conv_kernel_size});
  const std::array<MatrixView<float>, 3> streams = {p.q, p.k, p.v};
  for (int64_t r = 0; r < states.num_rounds(); ++r) {
    const std::span<const KdaPiece> pieces = states.round(r);
    const auto segments = step.exec.arena.alloc<ShortConvSegment>(static_cast<int64_t>(pieces.size()));
    for (int64_t stream = 0; stream < 3; ++stream) {
      for (size_t i = 0; i < pieces.size(); ++i) {
        segments[i] = {.row_begin = pieces[i].row_begin,
                       .num_rows = pieces[i].num_rows,
                       .history = states.conv_history(pieces[i], stream)};
      }
      const MatrixView<float>& rows = streams[static_cast<size_t>(stream)];
      TANDEM_RETURN_IF_ERROR(short_conv(
          step.exec, {.x = rows, .weight = taps.rows(stream * width, width), .segments = segments, .out = rows}));
    }
    states.capture_conv(r);
  }
  return round_activations(step, MatrixView<float>::contiguous(p.q.data, {3 * num_rows(step), width}));
}

Status recur(const StepContext& step, const KdaStates& states, const Projected& p, const MatrixView<float>& g) {
  const int64_t heads = step.config.kda_num_heads;
  KdaArgs args{.q = split_heads<const float>(p.q, heads),
               .k = split_heads<const float>(p.k, heads),
               .v = split_heads<const float>(p.v, heads),
               .g = split_heads<const float>(g, heads),
               .beta = p.beta,
               .scale = output_scale(step.config),
               .segments = {},
               .out = split_heads(p.v, heads)};
  for (int64_t r = 0; r < states.num_rounds(); ++r) {
    const std::span<const KdaPiece> pieces = states.round(r);
    for (const StepMode mode : {StepMode::kPrefill, StepMode::kDecode}) {
      const auto segments = step.exec.arena.alloc<KdaSegment>(static_cast<int64_t>(pieces.size()));
      size_t count = 0;
      for (const KdaPiece& piece : pieces) {
        if (states.mode(piece) != mode) continue;
        segments[count++] = {
            .row_begin = piece.row_begin, .num_rows = piece.num_rows, .state = states.recurrent(piece)};
      }
      if (count == 0) continue;
      args.segments = segments.first(count);
      TANDEM_RETURN_IF_ERROR(mode == StepMode::kPrefill ? kda_chunked(step.exec, args)
                                                        : kda_recurrent(step.exec, args));
    }
    states.capture_recurrent(r);
  }
  return Status::ok();
}

// From the projections to the gated output, one operator after the other: the prefill, and every plan that
// decode_fused() does not take. Returns the rows of y.
Result<MatrixView<float>> mix_tokens(const StepContext& step, const KdaLayerWeights& weights, const KdaStates& states,
                                     const Projected& p) {
  const ModelConfig& config = step.config;
  const int64_t rows = num_rows(step);
  const int64_t heads = config.kda_num_heads;
  const int64_t head_dim = config.kda_head_dim;
  TANDEM_RETURN_IF_ERROR(convolve(step, weights, states, p));

  const auto query_and_key_heads = MatrixView<float>::contiguous(p.q.data, {2 * rows * heads, head_dim});
  TANDEM_RETURN_IF_ERROR(l2_norm(step.exec, {.x = query_and_key_heads, .eps = kL2NormEps, .out = query_and_key_heads}));
  TANDEM_RETURN_IF_ERROR(round_activations(step, query_and_key_heads));
  TANDEM_RETURN_IF_ERROR(sigmoid_inplace(step.exec, p.beta));
  TANDEM_RETURN_IF_ERROR(kda_gate(step.exec, {.z = split_heads<const float>(p.z, heads),
                                              .a_log = as_vector(weights.a_log),
                                              .dt_bias = as_vector(weights.dt_bias),
                                              .lower_bound = lower_bound(config),
                                              .g = split_heads(p.z, heads)}));
  TANDEM_RETURN_IF_ERROR(recur(step, states, p, p.z));
  TANDEM_RETURN_IF_ERROR(round_activations(step, p.v));

  // recur() wrote the read-out over v.
  const int64_t out_rows = p.gate.shape[0];
  const MatrixView<float> out = out_rows == rows ? p.v : gather_wanted_rows(step, p.v);
  const auto out_heads = MatrixView<float>::contiguous(out.data, {out_rows * heads, head_dim});
  const auto gate_heads = MatrixView<const float>::contiguous(p.gate.data, {out_rows * heads, head_dim});
  TANDEM_RETURN_IF_ERROR(rms_norm_gated(step.exec, {.x = out_heads,
                                                    .gate = gate_heads,
                                                    .weight = as_vector(weights.o_norm),
                                                    .eps = static_cast<float>(config.rms_norm_eps),
                                                    .out = out_heads}));
  TANDEM_RETURN_IF_ERROR(round_activations(step, out));
  return out;
}

// A plan of decode rows alone, in f32, goes through the fused operator. bf16 activations are rounded between its parts.
bool decodes_fused(const StepContext& step, const Projected& p) {
  if (step.options.activation_dtype == DType::kBF16 || p.gate.shape[0] != num_rows(step)) return false;
  for (const SequenceStep& sequence : step.plan.sequences) {
    if (sequence.mode != StepMode::kDecode) return false;
  }
  return true;
}

Result<MatrixView<float>> decode_fused(const StepContext& step, const KdaLayerWeights& weights, const KdaStates& states,
                                       const Projected& p) {
  const ModelConfig& config = step.config;
  const int64_t width = config.kda_projection_size();
  KdaDecodeArgs args{.heads = config.kda_num_heads,
                     .q = p.q,
                     .k = p.k,
                     .v = p.v,
                     .z = p.z,
                     .beta = p.beta,
                     .gate = p.gate,
                     .conv_weight = MatrixView<const float>::contiguous(weights.conv_weight.data(),
                                                                        {3 * width, config.short_conv_kernel_size}),
                     .a_log = as_vector(weights.a_log),
                     .dt_bias = as_vector(weights.dt_bias),
                     .lower_bound = lower_bound(config),
                     .l2_eps = kL2NormEps,
                     .norm_weight = as_vector(weights.o_norm),
                     .norm_eps = static_cast<float>(config.rms_norm_eps),
                     .scale = output_scale(config),
                     .segments = {},
                     .out = alloc_rows(step, num_rows(step), width)};
  for (int64_t r = 0; r < states.num_rounds(); ++r) {
    const std::span<const KdaPiece> pieces = states.round(r);
    const auto segments = step.exec.arena.alloc<KdaDecodeSegment>(static_cast<int64_t>(pieces.size()));
    for (size_t i = 0; i < pieces.size(); ++i) {
      segments[i] = {.row_begin = pieces[i].row_begin,
                     .num_rows = pieces[i].num_rows,
                     .state = states.recurrent(pieces[i]),
                     .history = states.conv_history(pieces[i])};
    }
    args.segments = segments;
    TANDEM_RETURN_IF_ERROR(kda_decode(step.exec, args));
    states.capture_conv(r);
    states.capture_recurrent(r);
  }
  return args.out;
}

}  // namespace

Status kda_layer(const StepContext& step, int64_t layer, const KdaLayerWeights& weights,
                 const MatrixView<const float>& x, const MatrixView<float>& y) {
  const PhaseTimer timer(step.times, Phase::kKda);
  const KdaStates states(step, layer);
  const Result<Projected> projected = project(step, weights, x, y.shape[0]);
  if (!projected.is_ok()) return projected.status();
  const Projected& p = projected.value();
  const Result<MatrixView<float>> mixed =
      decodes_fused(step, p) ? decode_fused(step, weights, states, p) : mix_tokens(step, weights, states, p);
  if (!mixed.is_ok()) return mixed.status();
  states.commit();
  const std::array<LinearOutput, 1> output = {{{weights.o_proj, y}}};
  TANDEM_RETURN_IF_ERROR(project(step, mixed.value(), output));
  return round_activations(step, y);
}

}  // namespace tandem
