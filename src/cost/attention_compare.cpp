#include "cost/attention_compare.h"

#include <algorithm>

#include "base/function_ref.h"

namespace tandem {
namespace {

constexpr double kLongest = 1048576;

double amount(int64_t n) { return static_cast<double>(n); }

// Parameters of one attention layer by kind; the projections alone, as read by a step.
double mla_parameters(const ModelConfig& c) {
  const double D = amount(c.hidden_size), H = amount(c.num_attention_heads);
  const double query = H * amount(c.qk_head_dim()), value = H * amount(c.v_head_dim);
  const double q = c.q_lora_rank ? amount(*c.q_lora_rank) * (D + query) : D * query;
  const double kv_b = H * amount((c.qk_nope_head_dim + c.v_head_dim) * c.kv_lora_rank);
  return q + amount(c.mla_latent_width()) * D + kv_b + (c.mla_use_output_gate ? D * value : 0.0) + D * value;
}

// What fills the cache, every token: keys and values, of MLA from the latent.
double mla_cache_parameters(const ModelConfig& c) {
  return amount(c.mla_latent_width() * c.hidden_size) +
         amount(c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim) * c.kv_lora_rank);
}
double gqa_cache_parameters(const ModelConfig& c, const CompareOptions& options) {
  return 2.0 * amount(options.gqa_groups * c.v_head_dim * c.hidden_size);
}

double gqa_parameters(const ModelConfig& c, const CompareOptions& options) {
  const double D = amount(c.hidden_size), value = amount(c.num_attention_heads * c.v_head_dim);
  return D * (2.0 * value + (c.mla_use_output_gate ? value : 0.0)) + gqa_cache_parameters(c, options);
}

// Queries from the query rank (or the hidden state), one key head, a weight for each head.
double indexer_key_parameters(const ModelConfig& c, const CompareOptions& options) {
  return amount(c.hidden_size * options.indexer_head_dim);
}
double indexer_parameters(const ModelConfig& c, const CompareOptions& options) {
  const double heads = amount(options.indexer_heads), dim = amount(options.indexer_head_dim);
  return amount(c.q_lora_rank.value_or(c.hidden_size)) * heads * dim + amount(c.hidden_size) * heads +
         indexer_key_parameters(c, options);
}

// What a KDA layer applies to rows that are read alone: output gate and output.
double kda_read_parameters(const ModelConfig& c) {
  const double P = amount(c.kda_projection_size()), D = amount(c.hidden_size), d = amount(c.kda_head_dim);
  return D * P + (c.use_full_rank_gate ? D * P : d * (D + P));
}

double indexer_pair_flops(const CompareOptions& options) {
  return 2.0 * amount(options.indexer_heads * (options.indexer_head_dim + 1));
}

// Σ over t < tokens of min(t + ½, k): pairs of a causal prompt whose rows see k tokens at most.
double sparse_pairs(double tokens, double k) {
  if (tokens <= k) return tokens * tokens / 2;
  return k * k / 2 + (tokens - k) * k;
}

// Contexts in (1, kLongest) where f changes sign, by steps of 2 % and bisection.
std::vector<double> sign_changes(FunctionRef<double(double)> f) {
  std::vector<double> found;
  double low = 1;
  bool negative = f(low) < 0;
  for (double high = 1.02; low < kLongest; high = std::min(high * 1.02, kLongest)) {
    if ((f(high) < 0) != negative) {
      double a = low, b = high;
      while (b - a > 1e-9 * b) {
        const double middle = (a + b) / 2;
        ((f(middle) < 0) == negative ? a : b) = middle;
      }
      found.push_back(b);
      negative = !negative;
    }
    low = high;
  }
  return found;
}

}  // namespace

std::string_view attention_name(Attention attention) {
  switch (attention) {
    case Attention::kHybrid: return "hybrid";
    case Attention::kFullMla: return "full MLA";
    case Attention::kGqa: return "GQA";
    case Attention::kDsa: return "DSA";
  }
  return "?";
}

AttentionCost::AttentionCost(const ModelCost& model, Attention attention, const CompareOptions& options)
    : model_(model), attention_(attention), options_(options) {
  const ModelConfig& c = model.config;
  layers_ = amount(attention == Attention::kHybrid ? model.cache.num_mla_layers() : c.num_hidden_layers);
  // Matrices alone, like WeightSizes::trunk: what a step multiplies with.
  const double P = amount(c.kda_projection_size()), D = amount(c.hidden_size), d = amount(c.kda_head_dim);
  const double kda =
      4.0 * D * P + d * (D + P) + amount(c.kda_num_heads) * D + (c.use_full_rank_gate ? D * P : d * (D + P));
  hybrid_parameters_ =
      amount(model.cache.num_kda_layers()) * kda + amount(model.cache.num_mla_layers()) * mla_parameters(c);
  const double mla_read = mla_parameters(c) - mla_cache_parameters(c);
  hybrid_last_read_ = c.kinds.back() == LayerKind::kMla ? mla_read : kda_read_parameters(c);
  switch (attention) {
    case Attention::kHybrid:
      attention_parameters_ = hybrid_parameters_;
      last_read_ = hybrid_last_read_;
      break;
    case Attention::kFullMla:
      attention_parameters_ = layers_ * mla_parameters(c);
      last_read_ = mla_read;
      break;
    case Attention::kGqa:
      attention_parameters_ = layers_ * gqa_parameters(c, options);
      last_read_ = gqa_parameters(c, options) - gqa_cache_parameters(c, options);
      break;
    case Attention::kDsa:
      attention_parameters_ = layers_ * (mla_parameters(c) + indexer_parameters(c, options));
      last_read_ = mla_read + indexer_parameters(c, options) - indexer_key_parameters(c, options);
      break;
  }
}

bool AttentionCost::is_last_layer() const {
  return attention_ != Attention::kHybrid || model_.config.kinds.back() == LayerKind::kMla;
}

double AttentionCost::cache_bytes_per_token() const {
  const double element = amount(dtype_size(model_.cache.dtype));
  const double latent = amount(model_.config.mla_latent_width()) * element;
  switch (attention_) {
    case Attention::kHybrid:
    case Attention::kFullMla: return layers_ * latent;
    case Attention::kGqa: return layers_ * 2.0 * amount(options_.gqa_groups * model_.config.v_head_dim) * element;
    case Attention::kDsa: return layers_ * (latent + amount(options_.indexer_key_bytes));
  }
  return 0;
}

double AttentionCost::state_bytes_per_sequence() const {
  return attention_ == Attention::kHybrid ? amount(model_.cache.state_bytes()) : 0.0;
}

double AttentionCost::traffic(double depth) const {
  if (attention_ != Attention::kDsa) return 2.0 * state_bytes_per_sequence() + depth * cache_bytes_per_token();
  const double keys = layers_ * amount(options_.indexer_key_bytes);
  return depth * keys + std::min(depth, amount(options_.top_k)) * (cache_bytes_per_token() - keys);
}

double AttentionCost::attention_flops(double depth) const {
  const ModelConfig& c = model_.config;
  const double heads = amount(c.num_attention_heads);
  const double absorbed = 2.0 * heads * amount(c.mla_latent_width() + c.kv_lora_rank);
  switch (attention_) {
    case Attention::kHybrid:
      return 7.0 * amount(model_.cache.recurrent_elements() * model_.cache.num_kda_layers()) +
             layers_ * depth * absorbed;
    case Attention::kFullMla: return layers_ * depth * absorbed;
    case Attention::kGqa: return layers_ * depth * 4.0 * heads * amount(c.v_head_dim);
    case Attention::kDsa:
      return layers_ * (depth * indexer_pair_flops(options_) + std::min(depth, amount(options_.top_k)) * absorbed);
  }
  return 0;
}

StepCost AttentionCost::decode(double depth, double sequences) const {
  StepCost cost = decode_cost(model_, 0, sequences);
  const double more = attention_parameters_ - hybrid_parameters_;
  cost.trunk_bytes += 2.0 * more;  // attention is stored as bf16
  cost.trunk_flops += 2.0 * more * sequences;
  cost.state_bytes = 0;
  cost.kda_flops = 0;
  cost.latent_bytes = sequences * traffic(depth);
  cost.mla_flops = sequences * attention_flops(depth);
  return cost;
}

double AttentionCost::prefill_attention_flops(double tokens) const {
  const ModelConfig& c = model_.config;
  const double heads = amount(c.num_attention_heads);
  const double expanded = 2.0 * heads * amount(c.qk_head_dim() + c.v_head_dim);
  const double absorbed = 2.0 * heads * amount(c.mla_latent_width() + c.kv_lora_rank);
  // In the last layer the last token alone.
  const double last = is_last_layer() ? 1.0 : 0.0;
  const double pairs = (layers_ - last) * tokens * tokens / 2 + last * (tokens - 0.5);
  switch (attention_) {
    case Attention::kHybrid:
      return 7.0 * amount(model_.cache.recurrent_elements() * model_.cache.num_kda_layers()) * tokens +
             pairs * expanded;
    case Attention::kFullMla: return pairs * expanded;
    case Attention::kGqa: return pairs * 4.0 * heads * amount(c.v_head_dim);
    case Attention::kDsa: {
      const double k = amount(options_.top_k);
      const double sparse = (layers_ - last) * sparse_pairs(tokens, k) + last * std::min(tokens - 0.5, k);
      return pairs * indexer_pair_flops(options_) + std::min(pairs * expanded, sparse * absorbed);
    }
  }
  return 0;
}

StepCost AttentionCost::prefill(int64_t tokens) const {
  StepCost cost = prefill_cost(model_, 0, tokens, std::max<int64_t>(tokens, 1));
  const double more = attention_parameters_ - hybrid_parameters_;
  cost.trunk_bytes += 2.0 * more;
  cost.trunk_flops += 2.0 * (more * amount(tokens) - (last_read_ - hybrid_last_read_) * amount(tokens - 1));
  cost.state_bytes = 2.0 * state_bytes_per_sequence();
  cost.kda_flops = 0;
  cost.mla_flops = prefill_attention_flops(amount(tokens));
  return cost;
}

namespace {

std::optional<double> seconds(const ModelCost& model, const SpeedModel& speed, const StepCost& cost, StepKind kind) {
  const auto time = phase_time(model, speed, cost, kind);
  if (!time) return std::nullopt;
  return time->seconds;
}

void add_crossing(Comparison& comparison, std::string_view quantity, Attention other,
                  FunctionRef<double(double)> hybrid_less_other) {
  comparison.crossings.push_back({.quantity = quantity,
                                  .other = other,
                                  .hybrid_less_at_start = hybrid_less_other(1) < 0,
                                  .contexts = sign_changes(hybrid_less_other)});
}

}  // namespace

Comparison compare_attentions(const ModelCost& model, const SpeedModel& speed, double sequences,
                              const CompareOptions& options) {
  Comparison comparison{.options = options,
                        .sequences = sequences,
                        .parameters = {},
                        .bytes_per_token = {},
                        .bytes_per_sequence = {},
                        .points = {},
                        .crossings = {}};
  const StepKind decode{.is_prefill = false, .steps = 1, .tokens = sequences};
  const auto prompt = [](double tokens) { return StepKind{.is_prefill = true, .steps = 1, .tokens = tokens}; };
  std::vector<AttentionCost> costs;
  for (int i = 0; i < kNumAttentions; ++i) {
    const AttentionCost& cost = costs.emplace_back(model, static_cast<Attention>(i), options);
    const auto at = static_cast<size_t>(i);
    comparison.parameters[at] = cost.parameters();
    comparison.bytes_per_token[at] = cost.cache_bytes_per_token();
    comparison.bytes_per_sequence[at] = cost.state_bytes_per_sequence();
    for (int64_t context = 1024; context <= static_cast<int64_t>(kLongest); context *= 4) {
      const auto depth = static_cast<double>(context);
      comparison.points[at].push_back({.context = context,
                                       .cache_bytes = cost.cache_bytes(depth),
                                       .traffic_bytes = cost.traffic(depth),
                                       .attention_flops = cost.attention_flops(depth),
                                       .ttft_seconds = seconds(model, speed, cost.prefill(context), prompt(depth)),
                                       .tpot_seconds = seconds(model, speed, cost.decode(depth, sequences), decode)});
    }
  }
  const AttentionCost& hybrid = costs[0];
  const bool timed = comparison.points[0][0].tpot_seconds.has_value();
  for (int i = 1; i < kNumAttentions; ++i) {
    const AttentionCost& other = costs[static_cast<size_t>(i)];
    const auto name = static_cast<Attention>(i);
    add_crossing(comparison, "cache memory", name,
                 [&](double n) { return hybrid.cache_bytes(n) - other.cache_bytes(n); });
    add_crossing(comparison, "cache traffic", name, [&](double n) { return hybrid.traffic(n) - other.traffic(n); });
    if (!timed) continue;
    add_crossing(comparison, "TPOT", name, [&](double n) {
      return *seconds(model, speed, hybrid.decode(n, sequences), decode) -
             *seconds(model, speed, other.decode(n, sequences), decode);
    });
    add_crossing(comparison, "TTFT", name, [&](double n) {
      const auto tokens = static_cast<int64_t>(n);
      return *seconds(model, speed, hybrid.prefill(tokens), prompt(n)) -
             *seconds(model, speed, other.prefill(tokens), prompt(n));
    });
  }
  return comparison;
}

}  // namespace tandem
