#include "cost/model_plan.h"

#include <algorithm>
#include <filesystem>

#include "base/cat.h"
#include "weights/shard_index.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDefaultContext = 32768;
constexpr int64_t kDefaultPrompt = 2048;
constexpr int64_t kDefaultChunk = 512;
constexpr int64_t kDefaultGpuChunk = 8192;

bool has_weights(const std::string& dir) {
  std::error_code error;
  return fs::exists(cat(dir, "/", kIndexFileName), error) || fs::exists(cat(dir, "/model.safetensors"), error);
}

Status check_positive(std::string_view name, int64_t value) {
  if (value > 0) return Status::ok();
  return Status::invalid(cat(name, " is ", value, ", expected at least 1"));
}

Result<PlanOptions> resolved(PlanOptions options, const ModelConfig& config) {
  const int64_t limit = config.max_position_embeddings.value_or(kDefaultContext);
  if (options.context == 0) options.context = std::min(kDefaultContext, limit);
  if (options.prompt == 0) options.prompt = std::min(kDefaultPrompt, options.context);
  if (options.prefill_chunk == 0) options.prefill_chunk = options.machine.is_gpu ? kDefaultGpuChunk : kDefaultChunk;
  TANDEM_RETURN_IF_ERROR(check_positive("context", options.context));
  TANDEM_RETURN_IF_ERROR(check_positive("sequences", options.sequences));
  TANDEM_RETURN_IF_ERROR(check_positive("prompt", options.prompt));
  TANDEM_RETURN_IF_ERROR(check_positive("prefill chunk", options.prefill_chunk));
  TANDEM_RETURN_IF_ERROR(check_positive("threads", options.threads));
  for (const int64_t batch : options.batches) TANDEM_RETURN_IF_ERROR(check_positive("batch", batch));
  if (options.batches.empty()) options.batches = {1, 8, 32, options.sequences};
  std::sort(options.batches.begin(), options.batches.end());
  options.batches.erase(std::unique(options.batches.begin(), options.batches.end()), options.batches.end());
  return options;
}

// Ascending, each once, at most `limit`.
std::vector<int64_t> lengths(std::vector<int64_t> wanted, int64_t limit) {
  std::erase_if(wanted, [limit](int64_t n) { return n > limit; });
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  return wanted;
}

void add_memory(ModelPlan& plan) {
  const PlanOptions& options = plan.options;
  StepShape prefill;
  prefill.prompt_rows = std::min(options.prefill_chunk, options.prompt);
  prefill.prompts = 1;
  prefill.context = options.prompt;
  prefill.threads = options.threads;
  prefill.kernels = options.kernels;
  StepShape decode;
  decode.decode_rows = options.sequences;
  decode.logit_rows = options.sequences;
  decode.context = options.context;
  decode.threads = options.threads;
  decode.kernels = options.kernels;
  plan.prefill_scratch = step_scratch(plan.cost, prefill);
  plan.decode_scratch = step_scratch(plan.cost, decode);
  const SequenceMemory& one = options.sequences > 1 && plan.cache.pool ? plan.cache.pooled : plan.cache.alone;
  plan.fixed =
      fixed_memory(plan.cost.weights, plan.cost.config.tie_word_embeddings,
                   static_cast<double>(one.total()) * static_cast<double>(options.sequences),
                   static_cast<double>(std::max(plan.prefill_scratch.peak_bytes, plan.decode_scratch.peak_bytes)));
  plan.placement = place_weights(plan.cost.weights, plan.fixed, options.machine);
  plan.resident_memory_bytes = plan.fixed.total() + static_cast<double>(plan.cost.weights.routed_bytes());
}

void add_speed(ModelPlan& plan, const SpeedModel& speed) {
  const PlanOptions& options = plan.options;
  const ModelConfig& config = plan.cost.config;
  for (const int64_t context : lengths({1024, 8192, options.context}, options.context)) {
    for (const int64_t batch : options.batches) {
      const auto depth = static_cast<double>(context);
      const auto rows = static_cast<double>(batch);
      plan.decode.push_back(
          {.context = context,
           .batch = batch,
           .distinct_experts = distinct_experts(static_cast<double>(plan.cost.weights.experts_per_layer),
                                                static_cast<double>(config.num_experts_per_token), rows),
           .cost = decode_cost(plan.cost, depth, rows),
           .time = decode_time(plan.cost, speed, depth, rows)});
    }
  }
  for (const int64_t tokens :
       lengths({512, options.prompt, options.context}, std::max(options.context, options.prompt))) {
    plan.prefill.push_back({.tokens = tokens,
                            .cost = prefill_cost(plan.cost, 0, tokens, options.prefill_chunk),
                            .time = prefill_time(plan.cost, speed, 0, tokens, options.prefill_chunk)});
  }
  plan.decode_knee = decode_knee(plan.cost, options.machine, static_cast<double>(options.context));
  plan.prefill_knee = prefill_knee(plan.cost, options.machine);
  plan.memory_to_hide_disk = memory_to_hide_disk(plan.cost, speed, plan.fixed, static_cast<double>(options.context),
                                                 static_cast<double>(options.sequences));
}

void add_restores(ModelPlan& plan, const SpeedModel& speed) {
  const PlanOptions& options = plan.options;
  const auto add = [&](std::string_view tier, std::optional<double> rate) {
    if (!rate) return;
    const auto hit = prefix_hit(plan.cost, speed, options.prompt, options.prefill_chunk, *rate);
    if (!hit) return;
    plan.restores.push_back(
        {.tier = std::string(tier),
         .rate = *rate,
         .tokens = options.prompt,
         .hit = *hit,
         .break_even_tokens = prefix_break_even(plan.cost, speed, options.context, options.prefill_chunk, *rate)});
  };
  // A copy reads and writes: half of the read rate. A GPU's prefixes come back over its link.
  const Machine& machine = options.machine;
  if (machine.is_gpu) {
    add("host memory", machine.host_rate);
  } else if (machine.memory_rate) {
    add("memory", *machine.memory_rate / 2);
  }
  if (machine.disk_rate) add("disk", *machine.disk_rate * options.efficiency.disk);
}

void add_notes(ModelPlan& plan) {
  const PlanOptions& options = plan.options;
  const Machine& machine = options.machine;
  const auto limit = plan.cost.config.max_position_embeddings;
  const auto gigabytes = [](double bytes) { return cat(static_cast<double>(static_cast<int64_t>(bytes / 1e8)) / 10); };
  if (limit && std::max(options.context, options.prompt) > *limit) {
    plan.notes.push_back(cat("the model states ", *limit, " tokens of context; ",
                             std::max(options.context, options.prompt), " are beyond what it was trained for"));
  }
  if (plan.placement.trunk_missing > 0) {
    plan.notes.push_back(cat("trunk, caches and scratch do not fit: it runs from the mapped file, and ",
                             gigabytes(plan.placement.trunk_missing),
                             " GB of trunk and every expert chosen are read from disk for every step"));
  } else if (plan.placement.disk_experts > 0) {
    plan.notes.push_back(
        cat(plan.placement.disk_experts, " of ", plan.placement.experts,
            " experts stay on disk; hits are counted as if experts were chosen evenly, traces do better"));
  }
  const bool needs_disk = plan.placement.disk_experts > 0 || plan.placement.trunk_missing > 0;
  if (needs_disk && !machine.disk_rate) {
    plan.notes.push_back(
        "no speed is predicted: weights are read from disk and its bandwidth is not known (--disk-bw)");
  }
  if (!machine.memory_rate || !machine.flops_rate) {
    plan.notes.push_back("no speed is predicted: memory bandwidth and FLOPs are not known (--mem-bw, --flops)");
  }
  if (machine.is_gpu) {
    plan.notes.push_back("no GPU backend is measured: rates are data-sheet peaks times assumed shares");
  }
  if (options.path == AttentionPath::kReference) {
    plan.notes.push_back(
        "reference path: expanded keys and values of every head are stored; no engine should serve so");
  }
}

}  // namespace

Result<ModelPlan> plan_of(ModelCost cost, const PlanOptions& options) {
  Result<PlanOptions> checked = resolved(options, cost.config);
  if (!checked.is_ok()) return checked.status();
  ModelPlan plan;
  plan.options = std::move(checked).value();
  plan.cost = std::move(cost);
  plan.cost.path = options.path;
  plan.cost.cache = make_cache_layout(plan.cost.config, options.cache_dtype);
  Result<CacheMemory> cache = cache_memory(plan.cost, plan.options.context, plan.options.hash_unit);
  if (!cache.is_ok()) return cache.status();
  plan.cache = std::move(cache).value();
  add_memory(plan);
  const SpeedModel speed{
      .machine = plan.options.machine, .efficiency = options.efficiency, .placement = plan.placement};
  add_speed(plan, speed);
  add_restores(plan, speed);
  if (options.compare) {
    plan.comparison =
        compare_attentions(plan.cost, speed, static_cast<double>(plan.options.sequences), *options.compare);
  }
  add_notes(plan);
  return plan;
}

Result<ModelPlan> make_model_plan(const std::string& model, const PlanOptions& options) {
  std::error_code error;
  const bool bare_config = fs::is_regular_file(model, error);
  Result<ModelConfig> config = bare_config ? load_model_config_file(model) : load_model_config(model);
  if (!config.is_ok()) return config.status();
  ModelCost cost;
  cost.config = std::move(config).value();
  const bool from_headers = !bare_config && has_weights(model);
  if (from_headers) {
    const Result<Checkpoint> checkpoint = Checkpoint::open(model, Checkpoint::Mode::kHeadersOnly);
    if (!checkpoint.is_ok()) return checkpoint.status();
    Result<WeightSizes> weights = stored_weight_sizes(checkpoint.value(), cost.config);
    if (!weights.is_ok()) return weights.status();
    cost.weights = std::move(weights).value();
  } else {
    cost.weights = released_weight_sizes(cost.config);
  }
  Result<ModelPlan> plan = plan_of(std::move(cost), options);
  if (!plan.is_ok()) return plan.status();
  plan.value().model = model;
  plan.value().from_headers = from_headers;
  return plan;
}

}  // namespace tandem
