#include "model/layers/mla.h"

#include <array>
#include <cmath>

#include "kernels/elementwise/elementwise.h"
#include "kernels/linear/linear.h"
#include "kernels/mla/mla.h"
#include "kernels/norm/norm.h"
#include "model/layers/rows.h"
#include "model/layers/wanted_rows.h"
#include "tensor/stored_floats.h"

namespace tandem {
namespace {

struct Projected {
  MatrixView<float> q;       // [rows of y, H·(nope + rope)]
  MatrixView<float> latent;  // [T, rank + rope]: normalised latent, then the shared key part as it is
  MatrixView<float> gate;    // [rows of y, H·v], or no rows
};

// `rows`: of the queries, T or the plan's wanted rows.
Result<Projected> project(const StepContext& step, const MlaLayerWeights& weights, const MatrixView<const float>& x,
                          int64_t rows) {
  const ModelConfig& config = step.config;
  const auto lora_eps = static_cast<float>(config.mla_lora_norm_eps);
  const bool has_q_lora = !weights.q_a_proj.empty();
  Projected p;
  p.q = alloc_rows(step, rows, config.num_attention_heads * config.qk_head_dim());
  p.latent = alloc_rows(step, num_rows(step), config.mla_latent_width());
  const MatrixView<float> query_input = has_q_lora ? alloc_rows(step, rows, weights.q_a_proj.rows) : p.q;

  // The latent first: it alone is needed of every row.
  std::array<LinearOutput, 3> outputs = {
      {{weights.kv_a_proj, p.latent}, {has_q_lora ? weights.q_a_proj : weights.q_proj, query_input}, {}}};
  size_t count = 2;
  if (!weights.g_proj.empty()) {
    p.gate = alloc_rows(step, rows, weights.g_proj.rows);
    outputs[count++] = {weights.g_proj, p.gate};
  }
  const std::span<const LinearOutput> used = std::span(outputs).first(count);
  if (rows == num_rows(step)) {
    TANDEM_RETURN_IF_ERROR(project(step, x, used));
  } else {
    TANDEM_RETURN_IF_ERROR(project(step, x, used.first(1)));
    TANDEM_RETURN_IF_ERROR(project(step, gather_wanted_rows(step, x), used.subspan(1)));
  }
  for (const LinearOutput& output : used) TANDEM_RETURN_IF_ERROR(round_activations(step, output.y));

  if (has_q_lora) {
    TANDEM_RETURN_IF_ERROR(
        rms_norm(step.exec,
                 {.x = query_input, .weight = as_vector(weights.q_a_layernorm), .eps = lora_eps, .out = query_input}));
    TANDEM_RETURN_IF_ERROR(round_activations(step, query_input));
    const std::array<LinearOutput, 1> query = {{{weights.q_b_proj, p.q}}};
    TANDEM_RETURN_IF_ERROR(project(step, query_input, query));
    TANDEM_RETURN_IF_ERROR(round_activations(step, p.q));
  }
  const MatrixView<float> compressed = p.latent.columns(0, config.kv_lora_rank);  // the norm spares the key part
  TANDEM_RETURN_IF_ERROR(rms_norm(
      step.exec, {.x = compressed, .weight = as_vector(weights.kv_a_layernorm), .eps = lora_eps, .out = compressed}));
  TANDEM_RETURN_IF_ERROR(round_activations(step, compressed));
  return p;
}

// Writes rows at the sequence's next positions and advances its length.
void append_latents(MlaLatent& cache, const MatrixView<const float>& rows) {
  const int64_t width = rows.shape[1];
  const int64_t row_bytes = width * dtype_size(cache.dtype);
  for (int64_t i = 0; i < rows.shape[0]; ++i) {
    const int64_t position = cache.length + i;
    std::byte* out =
        cache.pages[static_cast<size_t>(position / cache.page_tokens)] + position % cache.page_tokens * row_bytes;
    store_floats({rows.row(i), static_cast<size_t>(width)}, cache.dtype, out);
  }
  append_mla_latent_page(cache, rows.shape[0]);
}

Status attend(const StepContext& step, int64_t layer, const MlaLayerWeights& weights, const Projected& p,
              const MatrixView<float>& out) {
  const ModelConfig& config = step.config;
  const auto& sequences = step.plan.sequences;
  const bool all_rows = out.shape[0] == num_rows(step);
  MlaArgs args{.q = split_heads<const float>(p.q, config.num_attention_heads),
               .kv_b = weights.kv_b_proj,
               .kv_lora_rank = config.kv_lora_rank,
               .qk_nope_head_dim = config.qk_nope_head_dim,
               .qk_rope_head_dim = config.qk_rope_head_dim,
               .v_head_dim = config.v_head_dim,
               .scale = 1.f / std::sqrt(static_cast<float>(config.qk_head_dim())),
               .segments = {},
               .out = split_heads(out, config.num_attention_heads)};
  const auto segments = step.exec.arena.alloc<MlaSegment>(static_cast<int64_t>(sequences.size()));
  for (const StepMode mode : {StepMode::kPrefill, StepMode::kDecode}) {
    size_t count = 0;
    int64_t row_begin = 0;
    for (const SequenceStep& sequence : sequences) {
      const int64_t rows = all_rows ? sequence.num_tokens : wanted_rows(sequence);
      if (sequence.mode == mode) {
        const auto& cache =
            std::get<MlaLatent>(step.caches[static_cast<size_t>(sequence.cache)].layers[static_cast<size_t>(layer)]);
        segments[count++] = {.row_begin = row_begin,
                             .num_rows = rows,
                             .latents = {.pages = {cache.pages.data(), cache.pages.size()},
                                         .page_tokens = cache.page_tokens,
                                         .dtype = cache.dtype,
                                         .length = cache.length}};
      }
      row_begin += rows;
    }
    if (count == 0) continue;
    args.segments = segments.first(count);
    TANDEM_RETURN_IF_ERROR(mode == StepMode::kPrefill ? mla_expanded(step.exec, args) : mla_absorbed(step.exec, args));
  }
  return Status::ok();
}

}  // namespace

Status mla_layer(const StepContext& step, int64_t layer, const MlaLayerWeights& weights,
                 const MatrixView<const float>& x, const MatrixView<float>& y) {
  const PhaseTimer timer(step.times, Phase::kMla);
  Result<Projected> projected = project(step, weights, x, y.shape[0]);
  if (!projected.is_ok()) return projected.status();
  const Projected& p = projected.value();

  int64_t row_begin = 0;
  for (const SequenceStep& sequence : step.plan.sequences) {
    auto& cache =
        std::get<MlaLatent>(step.caches[static_cast<size_t>(sequence.cache)].layers[static_cast<size_t>(layer)]);
    append_latents(cache, p.latent.rows(row_begin, sequence.num_tokens));
    row_begin += sequence.num_tokens;
  }

  if (y.shape[0] == 0) return Status::ok();
  const MatrixView<float> out = alloc_rows(step, y.shape[0], step.config.num_attention_heads * step.config.v_head_dim);
  TANDEM_RETURN_IF_ERROR(attend(step, layer, weights, p, out));
  TANDEM_RETURN_IF_ERROR(round_activations(step, out));
  if (p.gate.data != nullptr) {
    TANDEM_RETURN_IF_ERROR(sigmoid_gate(step.exec, {.x = out, .gate = p.gate, .out = out}));
    TANDEM_RETURN_IF_ERROR(round_activations(step, out));
  }
  const std::array<LinearOutput, 1> output = {{{weights.o_proj, y}}};
  TANDEM_RETURN_IF_ERROR(project(step, out, output));
  return round_activations(step, y);
}

}  // namespace tandem
