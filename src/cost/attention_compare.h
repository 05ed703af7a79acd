// cost/attention_compare.h: the hybrid against other attentions of the same widths, by cache, traffic, FLOPs and time
// over the length of the context. Everything but the attention layers (feed-forward, experts, head) stays as it is.
//
//   hybrid    the model: KDA and gated MLA layers as configured
//   full MLA  every layer the configuration's MLA: latents of every layer
//   GQA       every layer softmax attention with `gqa_groups` key/value heads of v_head_dim, query heads and output
//   gate
//             as MLA's; keys and values stored in the cache's type
//   DSA       every layer MLA with a lightning indexer that scores every token and picks `top_k` for attention
//             (DeepSeek-V3.2 report: 64 indexer heads of 128, keys in fp8 with a scale of 4 bytes, 2048 tokens)
//   Prefill of DSA takes the cheaper of dense expanded and sparse absorbed attention. Threading: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "cost/speed.h"
#include "cost/step_cost.h"

namespace tandem {

enum class Attention { kHybrid, kFullMla, kGqa, kDsa };
inline constexpr int kNumAttentions = 4;
std::string_view attention_name(Attention attention);

struct CompareOptions {
  int64_t gqa_groups = 8;
  int64_t indexer_heads = 64;
  int64_t indexer_head_dim = 128;
  int64_t indexer_key_bytes = 132;  // 128 of fp8, 4 of scale
  int64_t top_k = 2048;
};

// One attention of the model's widths: its own parameters and cache, and what the rest of the model adds.
class AttentionCost {
 public:
  AttentionCost(const ModelCost& model, Attention attention, const CompareOptions& options);

  double parameters() const { return attention_parameters_; }  // of all attention layers
  double cache_bytes_per_token() const;                        // stored
  double state_bytes_per_sequence() const;                     // stored, of any length
  double cache_bytes(double tokens) const { return state_bytes_per_sequence() + tokens * cache_bytes_per_token(); }
  // Cache read and written by one decoded token of one sequence at `depth`.
  double traffic(double depth) const;
  double attention_flops(double depth) const;  // of one decoded token, without projections
  StepCost decode(double depth, double sequences) const;
  StepCost prefill(int64_t tokens) const;  // cold, in one step

 private:
  double prefill_attention_flops(double tokens) const;

  bool is_last_layer() const;  // the last layer has this attention (of the hybrid: its MLA)

  const ModelCost& model_;
  Attention attention_;
  CompareOptions options_;
  double layers_ = 0;  // that have this attention: all, or the model's MLA layers
  double attention_parameters_ = 0;
  double hybrid_parameters_ = 0;
  double last_read_ = 0;  // parameters of the last layer's attention that only the last token of a prompt meets
  double hybrid_last_read_ = 0;
};

struct ComparePoint {
  int64_t context = 0;
  double cache_bytes = 0;
  double traffic_bytes = 0;
  double attention_flops = 0;
  std::optional<double> ttft_seconds;
  std::optional<double> tpot_seconds;  // of `sequences` together
};

// Where the hybrid begins to need less than the other, or ends to: contexts in ascending order, up to 1 Mi tokens.
struct Crossing {
  std::string_view quantity;  // "cache memory", "cache traffic", "TTFT", "TPOT"
  Attention other = Attention::kFullMla;
  bool hybrid_less_at_start = false;  // at one token
  std::vector<double> contexts;
};

struct Comparison {
  CompareOptions options;
  double sequences = 1;
  std::array<double, kNumAttentions> parameters{};
  std::array<double, kNumAttentions> bytes_per_token{};
  std::array<double, kNumAttentions> bytes_per_sequence{};
  std::array<std::vector<ComparePoint>, kNumAttentions> points;
  std::vector<Crossing> crossings;
};

// The contexts 1k … 1M by factors of 4, and what the machine makes of them.
Comparison compare_attentions(const ModelCost& model, const SpeedModel& speed, double sequences,
                              const CompareOptions& options);

}  // namespace tandem
