#include "cost/step_scratch.h"

#include <algorithm>
#include <vector>

#include "base/arena.h"
#include "kernels/kda/kda.h"
#include "kernels/simd/weight_product.h"

namespace tandem {
namespace {

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Sizes of small structs that the layers keep in the arena, by sequence or by source.
constexpr int64_t kMatrixViewBytes = 40;
constexpr int64_t kKdaWorkingBytes = 32;
constexpr int64_t kKdaPieceBytes = 24;
constexpr int64_t kConvSegmentBytes = 56;
constexpr int64_t kKdaSegmentBytes = 24;
constexpr int64_t kMlaSegmentBytes = 56;

// The blocks of base/arena.h without their memory.
class ArenaModel {
 public:
  void alloc(int64_t bytes) {
    bytes = round_up(bytes, static_cast<int64_t>(Arena::kAlignment));
    while (current_ + 1 < blocks_.size() && blocks_[current_].size - blocks_[current_].used < bytes) {
      blocks_[++current_].used = 0;
    }
    if (blocks_.empty() || blocks_[current_].size - blocks_[current_].used < bytes) {
      const int64_t previous = blocks_.empty() ? 0 : blocks_.back().size;
      blocks_.push_back({std::max({bytes, kMinBlockBytes, previous * 2}), 0});
      current_ = blocks_.size() - 1;
    }
    blocks_[current_].used += bytes;
    in_use_ += bytes;
  }
  void floats(int64_t count) { alloc(count * 4); }

  struct Mark {
    size_t block;
    int64_t used;
    int64_t in_use;
  };
  Mark mark() const { return {current_, blocks_.empty() ? 0 : blocks_[current_].used, in_use_}; }
  void release(Mark mark) {
    if (blocks_.empty()) return;
    current_ = mark.block;
    blocks_[current_].used = mark.used;
    in_use_ = mark.in_use;
  }
  int64_t in_use() const { return in_use_; }
  int64_t reserved() const {
    int64_t total = 0;
    for (const Block& block : blocks_) total += block.size;
    return total;
  }

 private:
  static constexpr int64_t kMinBlockBytes = int64_t{1} << 20;
  struct Block {
    int64_t size;
    int64_t used;
  };
  std::vector<Block> blocks_;
  size_t current_ = 0;
  int64_t in_use_ = 0;
};

class Walk {
 public:
  Walk(const ModelCost& model, const StepShape& shape) : config_(model.config), model_(model), shape_(shape) {}

  StepScratch run() {
    const int64_t D = config_.hidden_size;
    rows(D);  // embedded
    arena_.alloc(config_.max_attn_res_sources() * kMatrixViewBytes);
    if (config_.attn_res_mode != AttnResMode::kNone) rows(D);  // mixed
    if (config_.attn_res_mode != AttnResMode::kFull) rows(D);  // output
    for (layer_ = 0; layer_ < config_.num_hidden_layers; ++layer_) {
      const bool block_begins =
          config_.attn_res_mode == AttnResMode::kBlock && layer_ % config_.attn_res_block_size == 0;
      if (block_begins || config_.attn_res_mode == AttnResMode::kFull) rows(D);
      residual_ = arena_.in_use();
      sublayer([&] {
        rows(D);
        config_.kinds[static_cast<size_t>(layer_)] == LayerKind::kKda ? kda() : mla();
      });
      if (config_.attn_res_mode == AttnResMode::kFull) rows(D);
      residual_ = arena_.in_use();
      sublayer([&] {
        rows(D);
        config_.is_moe(layer_) ? moe() : mlp(config_.intermediate_size);
      });
    }
    residual_ = arena_.in_use();
    const int64_t R = shape_.logit_rows;
    arena_.floats(R * D);
    arena_.floats(R * D);
    arena_.floats(R * config_.vocab_size);
    linear(D, R);
    result_.reserved_bytes = arena_.reserved();
    return result_;
  }

 private:
  int64_t T() const { return shape_.rows; }
  void rows(int64_t columns) { arena_.floats(T() * columns); }

  void touch() {
    if (arena_.in_use() <= result_.peak_bytes) return;
    result_.peak_bytes = arena_.in_use();
    result_.residual_bytes = residual_;
    result_.layer_bytes = arena_.in_use() - residual_;
    result_.layer = layer_;
  }

  template <class Body>
  void sublayer(Body body) {
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

  // simd/weight_product.h: nothing for so few tokens that weights are used as they are read.
  int64_t product_floats(int64_t columns, int64_t tokens) const {
    const int64_t streamed = shape_.lanes == 16 ? 6 : (shape_.lanes == 8 ? 3 : 2);
    if (tokens <= streamed) return 0;
    const int64_t parked = columns > kColBlock ? kRowBlock * kTokenBlock * shape_.lanes : 0;
    return kRowBlock * kColBlock + parked;
  }
  void linear(int64_t columns, int64_t tokens) {
    kernel([&] { arena_.floats(product_floats(columns, tokens) * shape_.threads); });
  }

  void kda() {
    const int64_t P = config_.kda_projection_size(), d = config_.kda_head_dim, H = config_.kda_num_heads;
    const int64_t S = shape_.sequences;
    arena_.alloc(S * kKdaWorkingBytes);
    if (model_.cache.dtype != DType::kF32) {  // widened on entry
      for (int64_t s = 0; s < S; ++s) {
        arena_.floats(model_.cache.recurrent_elements());
        arena_.floats(model_.cache.conv_elements());
      }
    }
    arena_.alloc(S * kKdaPieceBytes);
    arena_.alloc(2 * 8);
    arena_.floats(3 * T() * P);
    rows(P);
    rows(H);
    rows(P);
    rows(d);
    if (!config_.use_full_rank_gate) rows(d);
    linear(config_.hidden_size, T());
    linear(d, T());
    arena_.alloc(S * kConvSegmentBytes);
    constexpr int64_t kConvBlock = 1024;  // channels of a task
    kernel([&] { arena_.floats((2 * config_.short_conv_kernel_size - 1) * kConvBlock * shape_.threads); });
    arena_.alloc(S * kKdaSegmentBytes);
    if (!shape_.is_prefill) arena_.alloc(S * kKdaSegmentBytes);
    const int64_t stride = round_up(d, shape_.lanes);
    constexpr int64_t C = kKdaChunk;
    const int64_t chunk = stride * (7 * C + 1) + 2 * C * C + C + 3 * C * 2 * shape_.lanes;
    const int64_t a_head = shape_.is_prefill ? round_up(chunk, 16) : round_up(16 * d, 16);
    kernel([&] { arena_.floats(a_head * shape_.threads); });
    linear(P, T());
  }

  void mla() {
    const int64_t H = config_.num_attention_heads;
    rows(H * config_.qk_head_dim());
    rows(config_.mla_latent_width());
    if (config_.q_lora_rank) rows(*config_.q_lora_rank);
    if (config_.mla_use_output_gate) rows(H * config_.v_head_dim);
    linear(config_.hidden_size, T());
    rows(H * config_.v_head_dim);
    arena_.alloc(shape_.sequences * kMlaSegmentBytes);
    shape_.is_prefill ? mla_expanded() : mla_absorbed();
    linear(H * config_.v_head_dim, T());
  }

  void mla_expanded() {
    constexpr int64_t kTile = 64, kGroupTiles = 16, kStageRows = 16;
    const int64_t lanes = shape_.lanes;
    const int64_t rank = config_.kv_lora_rank, width = config_.mla_latent_width();
    const int64_t nope = config_.qk_nope_head_dim, v_stride = round_up(config_.v_head_dim, 2 * lanes);
    const int64_t tile_rows = lanes == 16 ? 8 : 4;
    const int64_t a_thread = kStageRows * round_up(width, lanes) + nope * round_up(rank, lanes) + rank * v_stride +
                             nope * kTile + kTile * v_stride + tile_rows * kTile + 16;
    const int64_t tiles = std::min(kGroupTiles, (shape_.context + kTile - 1) / kTile);
    kernel([&] {
      arena_.floats(round_up(a_thread, 16) * shape_.threads);
      arena_.floats(2 * kTile);
      arena_.floats(tiles * width * kTile);
      arena_.floats(T() / shape_.sequences * config_.num_attention_heads * 2);
    });
  }

  void mla_absorbed() {
    constexpr int64_t kTile = 32, kPartTokens = 512, kMaxParts = 64, kRowBytes = 16;
    const int64_t query = round_up(config_.mla_latent_width(), shape_.lanes);
    const int64_t parts = std::clamp<int64_t>((shape_.context + kPartTokens - 1) / kPartTokens, 1, kMaxParts);
    const int64_t slots = T() * config_.num_attention_heads * parts;
    kernel([&] {
      arena_.alloc(T() * kRowBytes);
      arena_.alloc((T() + 1) * 4);
      arena_.floats(T() * config_.num_attention_heads * query);
      arena_.floats(slots * round_up(config_.kv_lora_rank, shape_.lanes));
      arena_.floats(slots * 2);
      arena_.floats(kTile * query * shape_.threads);
    });
  }

  void mlp(int64_t width) {
    rows(width);
    rows(width);
    linear(config_.hidden_size, T());
    linear(width, T());
  }

  void moe() {
    const int64_t Dl = config_.expert_input_size(), k = config_.num_experts_per_token;
    const int64_t shared = config_.moe_intermediate_size * config_.num_shared_experts;
    rows(config_.num_experts);
    if (config_.has_latent_experts()) rows(Dl);
    if (shared > 0) {
      rows(shared);
      rows(shared);
    }
    linear(config_.hidden_size, T());
    rows(k);  // ids
    rows(k);  // weights
    if (config_.has_latent_experts()) rows(Dl);
    experts(Dl, k);
    if (config_.has_latent_experts()) linear(Dl, T());
    if (shared == 0) return;
    rows(config_.hidden_size);
    linear(shared, T());
  }

  // kernels/moe/experts_simd.inl: hidden activations of a block of tokens that bounds them.
  void experts(int64_t Dl, int64_t k) {
    constexpr int64_t kHiddenBudgetBytes = int64_t{64} << 20;
    const int64_t E = config_.num_experts, I = config_.moe_intermediate_size;
    const int64_t block = std::clamp<int64_t>(kHiddenBudgetBytes / (k * I * 4), 1, T());
    kernel([&] {
      arena_.floats(E);
      arena_.floats(E + 1);
      arena_.floats(block * k);
      arena_.floats(block * k * I);
      arena_.floats((product_floats(std::max(Dl, I), block * k) + 2 * kTokenBlock * kRowBlock) * shape_.threads);
      arena_.floats(E);
      arena_.floats(block * Dl);
    });
  }

  const ModelConfig& config_;
  const ModelCost& model_;
  const StepShape& shape_;
  ArenaModel arena_;
  StepScratch result_;
  int64_t layer_ = 0;
  int64_t residual_ = 0;
};

}  // namespace

StepScratch step_scratch(const ModelCost& model, const StepShape& shape) { return Walk(model, shape).run(); }

}  // namespace tandem
