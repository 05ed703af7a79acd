#include "engine/bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <span>

#include "base/cat.h"
#include "cache/sequence_cache.h"

namespace tandem {
namespace {

// Matrices that every step reads once, and what a token multiplies with them.
struct StaticCost {
  double bytes = 0;
  double flops = 0;  // a token
  void add(const WeightView& weight) {
    bytes += static_cast<double>(weight.total_bytes());
    flops += 2.0 * static_cast<double>(weight.rows * weight.cols);
  }
};

void add_mlp(const MlpWeights& mlp, StaticCost& cost) {
  for (const WeightView* w : {&mlp.gate_proj, &mlp.up_proj, &mlp.down_proj}) cost.add(*w);
}

struct ModelCost {
  StaticCost trunk;         // everything but experts and the embedding
  double expert_bytes = 0;  // one expert
  double expert_flops = 0;  // one expert, one token
  double moe_layers = 0;
};

ModelCost model_cost(const LoadedModel& model) {
  ModelCost cost;
  for (const LayerWeights& layer : model.weights().layers) {
    if (const auto* kda = std::get_if<KdaLayerWeights>(&layer.attention)) {
      for (const WeightView* w : {&kda->q_proj, &kda->k_proj, &kda->v_proj, &kda->f_a_proj, &kda->f_b_proj,
                                  &kda->b_proj, &kda->g_proj, &kda->g_a_proj, &kda->g_b_proj, &kda->o_proj}) {
        cost.trunk.add(*w);
      }
    } else {
      const auto& mla = std::get<MlaLayerWeights>(layer.attention);
      for (const WeightView* w :
           {&mla.q_proj, &mla.q_a_proj, &mla.q_b_proj, &mla.kv_a_proj, &mla.kv_b_proj, &mla.g_proj, &mla.o_proj}) {
        cost.trunk.add(*w);
      }
    }
    if (const auto* mlp = std::get_if<MlpWeights>(&layer.feed_forward)) {
      add_mlp(*mlp, cost.trunk);
      continue;
    }
    const auto& moe = std::get<MoeLayerWeights>(layer.feed_forward);
    for (const WeightView* w : {&moe.router, &moe.latent_down, &moe.latent_up}) cost.trunk.add(*w);
    if (moe.shared_experts) add_mlp(*moe.shared_experts, cost.trunk);
    StaticCost expert;
    for (const WeightView* w : {&moe.experts[0].w1, &moe.experts[0].w3, &moe.experts[0].w2}) expert.add(*w);
    cost.expert_bytes = expert.bytes;
    cost.expert_flops = expert.flops;
    cost.moe_layers += 1;
  }
  cost.trunk.add(model.weights().lm_head);
  return cost;
}

// Read and write of the states, read of the latents.
double cache_bytes(const LoadedModel& model, double depth) {
  return 2.0 * static_cast<double>(model.cache_layout().state_bytes()) +
         depth * static_cast<double>(model.cache_layout().latent_bytes_per_token());
}

// Of one layer, in a step of `rows` tokens, as expected: a token misses a given expert with probability 1 − k/E, and
// tokens are taken as independent.
double distinct_experts(const ModelConfig& config, double rows) {
  if (config.num_experts == 0) return 0;
  const auto experts = static_cast<double>(config.num_experts);
  return experts * (1.0 - std::pow(1.0 - static_cast<double>(config.num_experts_per_token) / experts, rows));
}

class Runner {
 public:
  Runner(LoadedModel& model, int64_t prefill_chunk, int64_t sequences = 1)
      : model_(model), chunk_(prefill_chunk), random_(7) {
    for (int64_t i = 0; i < sequences; ++i) caches_.emplace_back(model.cache_layout());
  }

  void reset() {
    for (SequenceCache& cache : caches_) cache.reset();
  }

  // Every sequence on its own.
  Status prefill(int64_t count, PhaseTimes* times) {
    for (size_t s = 0; s < caches_.size(); ++s) {
      for (int64_t done = 0; done < count;) {
        const int64_t step_tokens = std::min(chunk_, count - done);
        TANDEM_RETURN_IF_ERROR(step({&caches_[s], 1}, step_tokens, StepMode::kPrefill, times));
        done += step_tokens;
      }
    }
    return Status::ok();
  }

  // All sequences in every step.
  Status decode(int64_t count, PhaseTimes* times) {
    for (int64_t i = 0; i < count; ++i) TANDEM_RETURN_IF_ERROR(step(caches_, 1, StepMode::kDecode, times));
    return Status::ok();
  }

 private:
  Status step(std::span<SequenceCache> caches, int64_t count, StepMode mode, PhaseTimes* times) {
    std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(model_.config().vocab_size - 1));
    plan_.tokens.clear();
    plan_.sequences.clear();
    views_.clear();
    for (SequenceCache& cache : caches) {
      TANDEM_RETURN_IF_ERROR(cache.reserve(cache.length() + count));
      for (int64_t i = 0; i < count; ++i) plan_.tokens.emplace_back(token(random_));
      plan_.sequences.push_back(SequenceStep{.cache = static_cast<int64_t>(views_.size()),
                                             .num_tokens = count,
                                             .num_computed_tokens = cache.length(),
                                             .mode = mode,
                                             .logits = LogitsWanted::kLast,
                                             .captures = {}});
      views_.push_back(cache.view());
    }
    return model_.model().forward(model_.exec(), plan_, views_, nullptr, times).status();
  }

  LoadedModel& model_;
  std::vector<SequenceCache> caches_;
  std::vector<SequenceCacheView> views_;
  int64_t chunk_;
  StepPlan plan_;
  std::mt19937 random_;
};

void fill_rates(BenchCase& result, std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const auto tokens = static_cast<double>(result.tokens * result.sequences);
  const size_t middle = seconds.size() / 2;
  const double median = seconds.size() % 2 == 1 ? seconds[middle] : (seconds[middle - 1] + seconds[middle]) / 2;
  result.seconds = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  result.tok_s = tokens / median;
  result.min_tok_s = tokens / seconds.back();
  result.max_tok_s = tokens / seconds.front();
  result.read_gb_s = result.bytes_per_token * result.tok_s / 1e9;
  result.gflop_s = result.flops_per_token * result.tok_s / 1e9;
}

Result<double> timed(FunctionRef<Status()> work) {
  const auto start = std::chrono::steady_clock::now();
  TANDEM_RETURN_IF_ERROR(work());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// What the stream does between these two, of a model that has one.
ExpertStoreStats stream_stats(const LoadedModel& model) {
  return model.experts() != nullptr ? model.experts()->stats() : ExpertStoreStats{};
}
void count_stream(const LoadedModel& model, const ExpertStoreStats& before, BenchCase& result) {
  if (model.experts() == nullptr) return;
  if (!result.stream) result.stream.emplace();
  *result.stream += model.experts()->stats() - before;
}

Result<BenchCase> prefill_case(LoadedModel& model, const BenchOptions& options) {
  BenchCase result;
  result.is_prefill = true;
  result.tokens = options.prompt_tokens;
  result.bytes_per_token = prefill_bytes_per_token(model, options.prompt_tokens, options.prefill_chunk);
  result.flops_per_token = prefill_flops_per_token(model, options.prompt_tokens, options.prefill_chunk);
  Runner runner(model, options.prefill_chunk);
  TANDEM_RETURN_IF_ERROR(runner.prefill(options.prompt_tokens, nullptr));  // warm: pages mapped, scratch grown
  std::vector<double> seconds;
  for (int64_t i = 0; i < options.repeat; ++i) {
    runner.reset();
    const ExpertStoreStats before = stream_stats(model);
    const Result<double> elapsed = timed([&] { return runner.prefill(options.prompt_tokens, &result.phases); });
    if (!elapsed.is_ok()) return elapsed.status();
    count_stream(model, before, result);
    seconds.push_back(elapsed.value());
  }
  fill_rates(result, std::move(seconds));
  return result;
}

Result<BenchCase> decode_case(LoadedModel& model, const BenchOptions& options, int64_t depth, int64_t sequences) {
  BenchCase result;
  result.tokens = options.decode_tokens;
  result.depth = depth;
  result.sequences = sequences;
  const double mean_depth = static_cast<double>(depth) + static_cast<double>(options.decode_tokens) / 2;
  result.bytes_per_token = decode_bytes_per_token(model, mean_depth, sequences);
  result.flops_per_token = decode_flops_per_token(model, mean_depth);
  Runner runner(model, options.prefill_chunk, sequences);
  std::vector<double> seconds;
  for (int64_t i = 0; i < options.repeat; ++i) {
    runner.reset();
    TANDEM_RETURN_IF_ERROR(runner.prefill(depth, nullptr));
    if (i == 0) {
      TANDEM_RETURN_IF_ERROR(runner.decode(std::min<int64_t>(options.decode_tokens, 4), nullptr));
      runner.reset();
      TANDEM_RETURN_IF_ERROR(runner.prefill(depth, nullptr));
    }
    const ExpertStoreStats before = stream_stats(model);
    const Result<double> elapsed = timed([&] { return runner.decode(options.decode_tokens, &result.phases); });
    if (!elapsed.is_ok()) return elapsed.status();
    count_stream(model, before, result);
    seconds.push_back(elapsed.value());
  }
  fill_rates(result, std::move(seconds));
  return result;
}

}  // namespace

double decode_bytes_per_token(const LoadedModel& model, double depth, int64_t sequences) {
  const ModelCost cost = model_cost(model);
  const auto rows = static_cast<double>(sequences);
  const double experts = distinct_experts(model.config(), rows);
  return (cost.trunk.bytes + cost.moe_layers * experts * cost.expert_bytes) / rows + cache_bytes(model, depth);
}

double prefill_bytes_per_token(const LoadedModel& model, int64_t tokens, int64_t chunk) {
  const ModelCost cost = model_cost(model);
  const ModelConfig& config = model.config();
  double total = 0;
  for (int64_t done = 0; done < tokens; done += chunk) {
    const auto rows = static_cast<double>(std::min(chunk, tokens - done));
    total += cost.trunk.bytes + cost.moe_layers * distinct_experts(config, rows) * cost.expert_bytes +
             cache_bytes(model, static_cast<double>(done));
  }
  return total / static_cast<double>(tokens);
}

namespace {

// Everything but the attention of MLA: matrices, experts, and 7 operations an element of the KDA states.
double attention_free_flops(const LoadedModel& model) {
  const ModelCost cost = model_cost(model);
  const ModelConfig& config = model.config();
  const double state = static_cast<double>(model.cache_layout().recurrent_elements());
  return cost.trunk.flops + cost.moe_layers * static_cast<double>(config.num_experts_per_token) * cost.expert_flops +
         7.0 * state * static_cast<double>(model.cache_layout().num_kda_layers());
}

double mla_heads(const LoadedModel& model) {  // over all layers
  return static_cast<double>(model.config().num_attention_heads * model.cache_layout().num_mla_layers());
}

}  // namespace

double decode_flops_per_token(const LoadedModel& model, double depth) {
  const double pair = 2.0 * static_cast<double>(model.config().mla_latent_width() + model.config().kv_lora_rank);
  return attention_free_flops(model) + depth * mla_heads(model) * pair;
}

double prefill_flops_per_token(const LoadedModel& model, int64_t tokens, int64_t chunk) {
  const ModelConfig& config = model.config();
  const double pair = 2.0 * static_cast<double>(config.qk_head_dim() + config.v_head_dim);
  const double rebuild = 2.0 * static_cast<double>(config.kv_lora_rank * (config.qk_nope_head_dim + config.v_head_dim));
  double rebuilt = 0;  // tokens of earlier chunks, over all chunks
  for (int64_t done = chunk; done < tokens; done += chunk) rebuilt += static_cast<double>(done);
  const auto count = static_cast<double>(tokens);
  return attention_free_flops(model) + mla_heads(model) * (pair * count / 2 + rebuild * rebuilt / count);
}

Status run_bench(LoadedModel& model, const BenchOptions& options, FunctionRef<void(const BenchCase&)> on_case) {
  if (options.repeat < 1) return Status::invalid(cat("repeat is ", options.repeat, ", expected at least 1"));
  if (options.prefill_chunk < 1) {
    return Status::invalid(cat("prefill chunk is ", options.prefill_chunk, " tokens, expected at least 1"));
  }
  for (const int64_t sequences : options.sequences) {
    if (sequences < 1) return Status::invalid(cat("sequences is ", sequences, ", expected at least 1"));
  }
  int64_t longest = options.prompt_tokens;
  for (const int64_t depth : options.depths) {
    int64_t length = 0;
    if (depth < 0 || __builtin_add_overflow(depth, options.decode_tokens, &length)) {
      return Status::invalid(cat("depth is ", depth, ", expected a number of tokens"));
    }
    longest = std::max(longest, length);
  }
  if (longest > model.context_limit()) {
    return Status::invalid(
        cat("the longest case has ", longest, " tokens and the context holds ", model.context_limit()));
  }
  if (options.prompt_tokens > 0) {
    const Result<BenchCase> result = prefill_case(model, options);
    if (!result.is_ok()) return result.status();
    on_case(result.value());
  }
  if (options.decode_tokens == 0) return Status::ok();
  for (const int64_t sequences : options.sequences) {
    for (const int64_t depth : options.depths) {
      const Result<BenchCase> result = decode_case(model, options, depth, sequences);
      if (!result.is_ok()) return result.status();
      on_case(result.value());
    }
  }
  return Status::ok();
}

}  // namespace tandem
