#include "engine/bench.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <span>

#include "base/cat.h"
#include "cache/sequence_cache.h"
#include "cost/speed.h"

namespace tandem {
namespace {

class Runner {
 public:
  Runner(LoadedModel& model, int64_t prefill_chunk, int64_t sequences = 1)
      : model_(model), chunk_(prefill_chunk), random_(7) {
    for (int64_t i = 0; i < sequences; ++i) caches_.emplace_back(model.cache_layout());
  }

  void reset() {
    for (SequenceCache& cache : caches_) cache.reset();
  }

  // Every sequence on its own; the last token's logits.
  Status prefill(int64_t count, PhaseTimes* times) {
    for (size_t s = 0; s < caches_.size(); ++s) {
      for (int64_t done = 0; done < count;) {
        const int64_t step_tokens = std::min(chunk_, count - done);
        done += step_tokens;
        const LogitsWanted logits = done == count ? LogitsWanted::kLast : LogitsWanted::kNone;
        TANDEM_RETURN_IF_ERROR(step({&caches_[s], 1}, step_tokens, {StepMode::kPrefill, logits}, times));
      }
    }
    return Status::ok();
  }

  // All sequences in every step.
  Status decode(int64_t count, PhaseTimes* times) {
    const Rows one{StepMode::kDecode, LogitsWanted::kLast};
    for (int64_t i = 0; i < count; ++i) TANDEM_RETURN_IF_ERROR(step(caches_, 1, one, times));
    return Status::ok();
  }

 private:
  struct Rows {
    StepMode mode;
    LogitsWanted logits;
  };
  Status step(std::span<SequenceCache> caches, int64_t count, Rows rows, PhaseTimes* times) {
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
                                             .mode = rows.mode,
                                             .logits = rows.logits,
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
  const ModelCost cost = bench_cost(model);
  result.bytes_per_token = prefill_bytes_per_token(cost, options.prompt_tokens, options.prefill_chunk);
  result.flops_per_token = prefill_flops_per_token(cost, options.prompt_tokens, options.prefill_chunk);
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
  const ModelCost cost = bench_cost(model);
  result.bytes_per_token = decode_bytes_per_token(cost, mean_depth, sequences);
  result.flops_per_token = decode_flops_per_token(cost, mean_depth);
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

ModelCost bench_cost(const LoadedModel& model) {
  return {.config = model.config(),
          .weights = bound_weight_sizes(model.weights()),
          .cache = model.cache_layout(),
          .path = AttentionPath::kFast};
}

double decode_bytes_per_token(const ModelCost& cost, double depth, int64_t sequences) {
  const auto rows = static_cast<double>(sequences);
  return decode_cost(cost, depth, rows).bytes() / rows;
}

double decode_flops_per_token(const ModelCost& cost, double depth) { return decode_cost(cost, depth, 1).flops(); }

double prefill_bytes_per_token(const ModelCost& cost, int64_t tokens, int64_t chunk) {
  return prefill_cost(cost, 0, tokens, chunk).bytes() / static_cast<double>(tokens);
}

double prefill_flops_per_token(const ModelCost& cost, int64_t tokens, int64_t chunk) {
  return prefill_cost(cost, 0, tokens, chunk).flops() / static_cast<double>(tokens);
}

double predicted_tok_s(const ModelCost& cost, const BenchCase& result, int64_t prefill_chunk, const Machine& machine) {
  const SpeedModel speed{.machine = machine, .efficiency = cpu_efficiency(), .placement = {}};
  const auto tokens = static_cast<double>(result.tokens);
  const auto sequences = static_cast<double>(result.sequences);
  const std::optional<PhaseTime> time =
      result.is_prefill ? prefill_time(cost, speed, 0, result.tokens, prefill_chunk)
                        : decode_time(cost, speed, static_cast<double>(result.depth) + tokens / 2, sequences);
  if (!time || time->seconds <= 0) return 0;
  return (result.is_prefill ? tokens : sequences) / time->seconds;
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
