#include "cost/step_scratch.h"

#include <algorithm>

#include "cost/arena_model.h"
#include "cost/kernel_scratch.h"
#include "kernels/kda/kda.h"
#include "kernels/kda/kda_decode.h"
#include "kernels/kda/short_conv.h"
#include "kernels/linear/linear.h"
#include "kernels/mla/mla.h"
#include "kernels/row_ranges.h"

namespace tandem {
namespace {

// Sizes of small structs that the layers and kernels keep in the arena and do not show.
constexpr int64_t kKdaWorkingBytes = 32;  // a sequence, in a KDA layer
constexpr int64_t kKdaPieceBytes = 24;
constexpr int64_t kMlaRowBytes = 24;

// Rows of a sublayer: those of prompts, and the others.
struct Rows {
  int64_t prompt = 0;
  int64_t decode = 0;
  int64_t all() const { return prompt + decode; }
};

class Walk {
 public:
  Walk(const ModelCost& model, const StepShape& shape)
      : config_(model.config),
        model_(model),
        shape_(shape),
        kernels_(kernel_widths(shape.kernels, shape.threads)),
        lanes_(kernels_.lanes) {
    rows_ = {shape.prompt_rows, shape.decode_rows};
    // The wanted rows: a token of every decoded sequence first, the rest are rows of prompts.
    const int64_t decode = std::min(shape.decode_rows, shape.logit_rows);
    wanted_ = shape.observed ? rows_ : Rows{shape.logit_rows - decode, decode};
  }

  StepScratch run() {
    const int64_t D = config_.hidden_size;
    arena_.alloc(shape_.sequences() * static_cast<int64_t>(sizeof(RowRange)));
    arena_.alloc(shape_.sequences() * static_cast<int64_t>(sizeof(RowRange)));
    floats(rows_, D);  // embedded
    arena_.alloc(config_.max_attn_res_sources() * static_cast<int64_t>(sizeof(MatrixView<const float>)));
    if (mode() == AttnResMode::kFull) sources_ = 1;
    if (mode() != AttnResMode::kNone) floats(rows_, D);  // mixed
    if (mode() != AttnResMode::kFull) floats(rows_, D);  // output
    for (layer_ = 0; layer_ < config_.num_hidden_layers; ++layer_) {
      const bool narrows = layer_ + 1 == config_.num_hidden_layers && wanted_.all() < rows_.all();
      const Rows behind = narrows ? wanted_ : rows_;
      attention(behind);
      if (narrows && !keep_wanted_rows()) break;
      feed_forward(behind);
    }
    if (wanted_.all() > 0) head();
    result_.touched_bytes = arena_.touched();
    result_.reserved_bytes = arena_.reserved();
    return result_;
  }

 private:
  AttnResMode mode() const { return config_.attn_res_mode; }
  void floats(Rows rows, int64_t columns) { arena_.floats(rows.all() * columns); }

  void touch() {
    if (arena_.in_use() <= result_.peak_bytes) return;
    result_.peak_bytes = arena_.in_use();
    result_.residual_bytes = residual_;
    result_.layer_bytes = arena_.in_use() - residual_;
    result_.layer = layer_;
  }

  template <class Body>
  void sublayer(Body body) {
    residual_ = arena_.in_use();
    const ArenaModel::Mark mark = arena_.mark();
    body();
    arena_.release(mark);
  }
  // Scratch of an operator: taken, and given back.
  template <class Take>
  void kernel(Take take) {
    const ArenaModel::Mark mark = arena_.mark();
    take();
    touch();
    arena_.release(mark);
  }

  // model/layers/attn_res.cpp: the mix, the memory of the next output, and what takes it into the stream.
  void mix(int64_t running) {
    const int64_t sources = sources_ + running;
    if (mode() == AttnResMode::kNone || (mode() == AttnResMode::kBlock && sources_ == 0)) return;
    kernel([&] {
      arena_.floats(sources * shape_.threads);
      arena_.alloc(sources * shape_.threads * static_cast<int64_t>(sizeof(float*)));
    });
  }
  void attention(Rows behind) {
    const bool is_full = mode() == AttnResMode::kFull;
    mix(is_full ? 0 : 1);
    const bool block_begins = mode() == AttnResMode::kBlock && layer_ % config_.attn_res_block_size == 0;
    if (block_begins) sources_ += 1;
    if (block_begins || is_full) floats(rows_, config_.hidden_size);
    sublayer([&] {
      floats(rows_, config_.hidden_size);
      config_.kinds[static_cast<size_t>(layer_)] == LayerKind::kKda ? kda(behind) : mla(behind);
    });
    if (is_full) sources_ += 1;
  }
  void feed_forward(Rows rows) {
    const bool is_full = mode() == AttnResMode::kFull;
    mix(is_full ? 0 : 1);
    if (is_full) floats(rows, config_.hidden_size);
    sublayer([&] {
      floats(rows, config_.hidden_size);
      config_.is_moe(layer_) ? moe(rows) : mlp(rows, config_.intermediate_size);
    });
    if (is_full) sources_ += 1;
  }
  // False: nobody wants any, and the step ends.
  bool keep_wanted_rows() {
    if (wanted_.all() == 0) return false;
    const int64_t of_attention = mode() == AttnResMode::kFull ? -1 : 1;  // its output is no source yet; a running sum
    for (int64_t i = 0; i < sources_ + of_attention; ++i) floats(wanted_, config_.hidden_size);
    return true;
  }
  void head() {
    const int64_t D = config_.hidden_size;
    mix(mode() == AttnResMode::kFull ? 0 : 1);
    residual_ = arena_.in_use();
    if (shape_.observed) floats(rows_, D);
    if (wanted_.all() == rows_.all()) arena_.floats(shape_.logit_rows * D);
    arena_.floats(shape_.logit_rows * D);
    arena_.floats(shape_.logit_rows * config_.vocab_size);
    const int64_t decode = std::min(shape_.decode_rows, shape_.logit_rows);
    linear(D, {shape_.logit_rows - decode, decode}, 1);
  }

  // Products of `outputs` matrices with these rows: on tiles the prompts' and the others are two calls.
  void linear(int64_t columns, Rows rows, int64_t outputs) {
    if (rows.all() == 0) return;
    if (!kernels_.has_tiles) return simd_linear(columns, rows.all());
    const ArenaModel::Mark mark = arena_.mark();
    if (rows.prompt > 0) arena_.alloc(outputs * static_cast<int64_t>(sizeof(LinearOutput)));
    if (rows.prompt > 0) kernel([&] { take_prompt_tiles(arena_, kernels_, columns, rows.prompt); });
    if (rows.decode > 0) kernel([&] { take_decode_tiles(arena_, columns, rows.decode); });
    if (!model_.weights.fits_bf16) {
      for (const int64_t some : {rows.prompt, rows.decode}) {
        if (some == 0) continue;
        kernel([&] { take_int8_tiles(arena_, columns, some); });
        simd_linear(columns, some);
      }
    }
    arena_.release(mark);
  }
  void simd_linear(int64_t columns, int64_t rows) {
    kernel([&] { take_simd_linear(arena_, kernels_, columns, rows); });
  }

  // model/layers/kda.cpp; `read`: the rows whose output is.
  void kda(Rows read) {
    const int64_t P = config_.kda_projection_size(), d = config_.kda_head_dim, H = config_.kda_num_heads;
    const int64_t D = config_.hidden_size, S = shape_.sequences();
    arena_.alloc(S * kKdaWorkingBytes);
    if (model_.cache.dtype != DType::kF32) {  // widened on entry
      for (int64_t s = 0; s < S; ++s) {
        arena_.floats(model_.cache.recurrent_elements());
        arena_.floats(model_.cache.conv_elements());
      }
    }
    arena_.alloc(S * kKdaPieceBytes);
    arena_.alloc(2 * 8);
    arena_.floats(3 * rows_.all() * P);
    floats(rows_, P);
    floats(rows_, H);
    floats(read, P);
    floats(rows_, d);
    if (!config_.use_full_rank_gate) floats(read, d);
    const bool all = read.all() == rows_.all();
    linear(D, rows_, all ? 6 : 5);
    if (!all) {
      floats(read, D);
      linear(D, read, 1);
    }
    linear(d, rows_, 1);
    if (!config_.use_full_rank_gate) linear(d, read, 1);
    const bool fused = all && rows_.prompt == 0 && !shape_.bf16_activations;
    fused ? kda_fused() : kda_by_operator(read);
    linear(P, read, 1);
  }

  void kda_fused() {
    const int64_t d = config_.kda_head_dim;
    floats(rows_, config_.kda_projection_size());
    arena_.alloc(shape_.sequences() * static_cast<int64_t>(sizeof(KdaDecodeSegment)));
    const int64_t a_head = 5 * kKdaChunk * d + config_.short_conv_kernel_size * d;
    kernel([&] { arena_.floats(round_up(a_head, 16) * shape_.threads); });
  }

  void kda_by_operator(Rows read) {
    constexpr int64_t kConvBlock = 1024;  // channels of a task
    constexpr int64_t kGroupChunks = 8, kBlockRows = 4;
    const int64_t d = config_.kda_head_dim, S = shape_.sequences();
    arena_.alloc(S * static_cast<int64_t>(sizeof(ShortConvSegment)));
    kernel([&] { arena_.floats((2 * config_.short_conv_kernel_size - 1) * kConvBlock * shape_.threads); });
    kernel([&] { arena_.floats(config_.kda_num_heads); });
    constexpr int64_t C = kKdaChunk;
    const int64_t stride = round_up(d, lanes_);
    const int64_t a_prompt = stride * (3 * C + 2 * kBlockRows + 1) +
                             kGroupChunks * (stride * (3 * C + 1) + 2 * C * C + C) + (stride + C) * 2 * lanes_;
    arena_.alloc(S * static_cast<int64_t>(sizeof(KdaSegment)));
    if (rows_.prompt > 0) kernel([&] { arena_.floats(round_up(a_prompt, 16) * shape_.threads); });
    arena_.alloc(S * static_cast<int64_t>(sizeof(KdaSegment)));
    if (rows_.decode > 0) kernel([&] { arena_.floats(round_up(C * d, 16) * shape_.threads); });
    if (read.all() != rows_.all()) floats(read, config_.kda_projection_size());
  }

  // model/layers/mla.cpp.
  void mla(Rows read) {
    const int64_t H = config_.num_attention_heads, D = config_.hidden_size;
    floats(read, H * config_.qk_head_dim());
    floats(rows_, config_.mla_latent_width());
    if (config_.q_lora_rank) floats(read, *config_.q_lora_rank);
    if (config_.mla_use_output_gate) floats(read, H * config_.v_head_dim);
    const int64_t outputs = config_.mla_use_output_gate ? 3 : 2;
    if (read.all() == rows_.all()) {
      linear(D, rows_, outputs);
    } else {
      linear(D, rows_, 1);
      floats(read, D);
      linear(D, read, outputs - 1);
    }
    if (config_.q_lora_rank) linear(*config_.q_lora_rank, read, 1);
    if (read.all() == 0) return;
    floats(read, H * config_.v_head_dim);
    arena_.alloc(shape_.sequences() * static_cast<int64_t>(sizeof(MlaSegment)));
    if (read.prompt > 0) mla_expanded(read);
    if (read.decode > 0) mla_absorbed(read.all());
    linear(H * config_.v_head_dim, read, 1);
  }

  void mla_expanded(Rows read) {
    constexpr int64_t kTile = 64;
    const int64_t width = 2 * lanes_;  // of a tile, in floats
    const int64_t heads = config_.num_attention_heads;
    const int64_t expanded = round_up(config_.qk_nope_head_dim, width) + round_up(config_.v_head_dim, width);
    const int64_t prompts = std::max<int64_t>(shape_.prompts, 1);
    int64_t longest = shape_.longest_prompt > 0 ? shape_.longest_prompt : (rows_.prompt + prompts - 1) / prompts;
    longest = std::min(longest, read.prompt);
    const int64_t splits = (shape_.threads + heads - 1) / heads;
    const int64_t rows = round_up((longest + splits - 1) / splits, width);
    const int64_t a_thread = kTile * round_up(config_.mla_latent_width(), lanes_) +
                             expanded * (config_.kv_lora_rank + kTile) + rows * (config_.qk_head_dim() + 2) +
                             (kTile + 2) * width;
    kernel([&] { arena_.floats(round_up(a_thread, 16) * shape_.threads); });
  }

  // Over all rows of the call, the prompts' included.
  void mla_absorbed(int64_t rows) {
    constexpr int64_t kTile = 64, kPartTokens = 128, kMaxParts = 32;
    const int64_t width = 2 * lanes_, heads = config_.num_attention_heads;
    const int64_t query = round_up(config_.mla_latent_width(), lanes_), head_stride = round_up(heads, width);
    const int64_t parts = std::clamp<int64_t>((shape_.context + kPartTokens - 1) / kPartTokens, 1, kMaxParts);
    kernel([&] {
      arena_.alloc(rows * kMlaRowBytes);
      arena_.alloc((rows + 1) * 4);
      arena_.floats(rows * heads * query);
      arena_.floats(rows * parts * heads * round_up(config_.kv_lora_rank, lanes_));
      arena_.floats(rows * parts * head_stride);
      arena_.floats(rows * parts * head_stride);
      const int64_t a_thread = head_stride * config_.mla_latent_width() + kTile * (query + width) + width;
      arena_.floats(round_up(a_thread, 16) * shape_.threads);
    });
  }

  void mlp(Rows rows, int64_t width) {
    floats(rows, width);
    floats(rows, width);
    linear(config_.hidden_size, rows, 2);
    linear(width, rows, 1);
  }

  // model/layers/latent_moe.cpp.
  void moe(Rows rows) {
    const int64_t D = config_.hidden_size, Dl = config_.expert_input_size(), k = config_.num_experts_per_token;
    const int64_t shared = config_.moe_intermediate_size * config_.num_shared_experts;
    floats(rows, config_.num_experts);
    if (config_.has_latent_experts()) floats(rows, Dl);
    if (shared > 0) {
      floats(rows, shared);
      floats(rows, shared);
    }
    linear(D, rows, 1 + (config_.has_latent_experts() ? 1 : 0) + (shared > 0 ? 2 : 0));
    floats(rows, k);  // ids
    floats(rows, k);  // weights
    kernel([&] { router_floats(); });
    if (shape_.streams_experts) kernel([&] { look_ahead(rows); });
    if (shared > 0) {
      floats(rows, D);
      linear(shared, rows, 1);
    }
    if (config_.has_latent_experts()) floats(rows, Dl);
    experts(rows, Dl, k);
    if (config_.has_latent_experts()) linear(Dl, rows, 1);
  }

  void router_floats() {
    arena_.floats(config_.num_experts);
    arena_.floats(config_.num_experts);
    arena_.floats(config_.num_expert_group);
  }

  // model/layers/streamed_experts.cpp: the next layer's router, and lists of experts.
  void look_ahead(Rows rows) {
    const int64_t E = config_.num_experts;
    arena_.alloc(E);
    arena_.floats(E);
    floats(rows, config_.hidden_size);
    floats(rows, E);
    linear(config_.hidden_size, rows, 1);
    floats(rows, config_.num_experts_per_token);
    floats(rows, config_.num_experts_per_token);
    kernel([&] { router_floats(); });
    for (int i = 0; i < 3; ++i) arena_.floats(E);
    arena_.alloc(E);
  }

  void experts(Rows rows, int64_t Dl, int64_t k) {
    ExpertShape shape{.experts = config_.num_experts,
                      .input = Dl,
                      .hidden = config_.moe_intermediate_size,
                      .chosen = k,
                      .tokens = rows.all(),
                      .is_mxfp8 = shape_.mxfp8_experts};
    const auto simd = [&] { kernel([&] { take_simd_experts(arena_, kernels_, shape); }); };
    if (!kernels_.has_tiles || shape_.mxfp8_experts) return simd();
    shape.tokens = rows.prompt;
    if (rows.prompt > 0) kernel([&] { take_prompt_experts(arena_, kernels_, shape); });
    if (rows.prompt > 0 && !model_.weights.fits_bf16) simd();
    shape.tokens = rows.decode;
    if (rows.decode > 0) simd();
  }

  const ModelConfig& config_;
  const ModelCost& model_;
  const StepShape& shape_;
  const KernelWidths kernels_;
  const int64_t lanes_;
  Rows rows_;            // of the step
  Rows wanted_;          // of them, those behind the last layer's caches
  int64_t sources_ = 0;  // of the attention residuals, stored
  ArenaModel arena_;
  StepScratch result_;
  int64_t layer_ = 0;
  int64_t residual_ = 0;
};

}  // namespace

StepScratch step_scratch(const ModelCost& model, const StepShape& shape) { return Walk(model, shape).run(); }

int64_t most_scratch_bytes(const ModelCost& model, const StepLimits& limits, StepShape shape) {
  const int64_t rows = std::max<int64_t>(limits.rows, 1);
  const int64_t sequences = std::clamp<int64_t>(limits.sequences, 1, rows);
  int64_t most = 0;
  // Prompts alone, decoded tokens alone, and as many of these beside one prompt.
  for (const int64_t decode : {int64_t{0}, sequences, sequences - 1}) {
    shape.decode_rows = decode;
    shape.prompts = decode == 0 ? sequences : (decode < sequences ? 1 : 0);
    shape.prompt_rows = shape.prompts == 0 ? 0 : rows - decode;
    shape.longest_prompt = shape.prompt_rows;
    shape.logit_rows = std::min(limits.logit_rows, shape.rows());
    most = std::max(most, step_scratch(model, shape).touched_bytes);
  }
  return most;
}

}  // namespace tandem
