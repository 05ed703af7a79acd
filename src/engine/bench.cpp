#include "engine/bench.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <random>

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

class Runner {
 public:
  Runner(LoadedModel& model, int64_t prefill_chunk)
      : model_(model), cache_(model.cache_layout()), chunk_(prefill_chunk), random_(7) {}

  void reset() { cache_.reset(); }

  Status prefill(int64_t count, PhaseTimes* times) {
    for (int64_t done = 0; done < count;) {
      const int64_t step_tokens = std::min(chunk_, count - done);
      TANDEM_RETURN_IF_ERROR(step(step_tokens, StepMode::kPrefill, times));
      done += step_tokens;
    }
    return Status::ok();
  }

  Status decode(int64_t count, PhaseTimes* times) {
    for (int64_t i = 0; i < count; ++i) TANDEM_RETURN_IF_ERROR(step(1, StepMode::kDecode, times));
    return Status::ok();
  }

 private:
  Status step(int64_t count, StepMode mode, PhaseTimes* times) {
    TANDEM_RETURN_IF_ERROR(cache_.reserve(cache_.length() + count));
    std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(model_.config().vocab_size - 1));
    plan_.tokens.clear();
    for (int64_t i = 0; i < count; ++i) plan_.tokens.emplace_back(token(random_));
    plan_.sequences.assign(1, SequenceStep{.cache = 0,
                                           .num_tokens = count,
                                           .num_computed_tokens = cache_.length(),
                                           .mode = mode,
                                           .logits = LogitsWanted::kLast,
                                           .captures = {}});
    const std::array<SequenceCacheView, 1> views = {cache_.view()};
    return model_.model().forward(model_.exec(), plan_, views, nullptr, times).status();
  }

  LoadedModel& model_;
  SequenceCache cache_;
  int64_t chunk_;
  StepPlan plan_;
  std::mt19937 random_;
};

void fill_rates(BenchCase& result, std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const auto tokens = static_cast<double>(result.tokens);
  const size_t middle = seconds.size() / 2;
  const double median = seconds.size() % 2 == 1 ? seconds[middle] : (seconds[middle - 1] + seconds[middle]) / 2;
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
    const Result<double> elapsed = timed([&] { return runner.prefill(options.prompt_tokens, &result.phases); });
    if (!elapsed.is_ok()) return elapsed.status();
    seconds.push_back(elapsed.value());
  }
  fill_rates(result, std::move(seconds));
  return result;
}

Result<BenchCase> decode_case(LoadedModel& model, const BenchOptions& options, int64_t depth) {
  BenchCase result;
  result.tokens = options.decode_tokens;
  result.depth = depth;
  const double mean_depth = static_cast<double>(depth) + static_cast<double>(options.decode_tokens) / 2;
  result.bytes_per_token = decode_bytes_per_token(model, mean_depth);
  result.flops_per_token = decode_flops_per_token(model, mean_depth);
  Runner runner(model, options.prefill_chunk);
  std::vector<double> seconds;
  for (int64_t i = 0; i < options.repeat; ++i) {
    runner.reset();
    TANDEM_RETURN_IF_ERROR(runner.prefill(depth, nullptr));
    if (i == 0) {
      TANDEM_RETURN_IF_ERROR(runner.decode(std::min<int64_t>(options.decode_tokens, 4), nullptr));
      runner.reset();
      TANDEM_RETURN_IF_ERROR(runner.prefill(depth, nullptr));
    }
    const Result<double> elapsed = timed([&] { return runner.decode(options.decode_tokens, &result.phases); });
    if (!elapsed.is_ok()) return elapsed.status();
    seconds.push_back(elapsed.value());
  }
  fill_rates(result, std::move(seconds));
  return result;
}

}  // namespace

double decode_bytes_per_token(const LoadedModel& model, double depth) {
  const ModelCost cost = model_cost(model);
  const auto active = static_cast<double>(model.config().num_experts_per_token);
  return cost.trunk.bytes + cost.moe_layers * active * cost.expert_bytes + cache_bytes(model, depth);
}

double prefill_bytes_per_token(const LoadedModel& model, int64_t tokens, int64_t chunk) {
  const ModelCost cost = model_cost(model);
  const ModelConfig& config = model.config();
  double total = 0;
  for (int64_t done = 0; done < tokens; done += chunk) {
    const auto rows = static_cast<double>(std::min(chunk, tokens - done));
    const auto experts = static_cast<double>(config.num_experts);
    double distinct = 0;
    if (config.num_experts > 0) {
      // A token misses a given expert with probability 1 − k/E; tokens are taken as independent.
      const double miss = 1.0 - static_cast<double>(config.num_experts_per_token) / experts;
      distinct = experts * (1.0 - std::pow(miss, rows));
    }
    total += cost.trunk.bytes + cost.moe_layers * distinct * cost.expert_bytes +
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
  for (const int64_t depth : options.depths) {
    const Result<BenchCase> result = decode_case(model, options, depth);
    if (!result.is_ok()) return result.status();
    on_case(result.value());
  }
  return Status::ok();
}

}  // namespace tandem
