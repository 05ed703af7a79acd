// serve_overhead: what a step of several streams costs a server beyond the bare engine's, in one process.
//
//   bare     a cache of the same kind, a forward pass a step; only the passes are timed, their threads awake
//   served   HTTP on the loopback device, the API, the serving engine and its cache; whole steps are timed, with what
//            the step before left for the HTTP threads to do beside it
//
//   The same model in the same memory computes the same prompts and draws the same tokens: the texts are compared. Both
//   take turns in blocks of some steps, so that a machine that others use too is as fast for one as for the other. The
//   first step of a block is not counted. Clients read seldom and in large pieces: theirs is no cost of the server.
//   A block pair gives one difference; a round its mean; the result is the median over rounds. JSON on stdout.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/cat.h"
#include "base/cgroup.h"
#include "base/thread_placement.h"
#include "cache/hybrid_cache.h"
#include "engine/serving/serving_engine.h"
#include "server/api_server.h"
#include "server/http_server.h"
#include "server/server_metrics.h"
#include "stream_clients.h"
#include "text/stream_decoder.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;
using Prompts = std::vector<std::vector<TokenId>>;

constexpr int64_t kCacheBytes = int64_t{2} << 30;  // address space; what is used is committed

struct Plan {
  std::string model;
  int64_t streams = 16;
  int64_t prompt_tokens = 128;
  int64_t block_steps = 8;  // timed, behind one that is not
  int64_t blocks = 8;       // of each kind in a round
  int64_t rounds = 7;
  int threads = 0;
  double temperature = 0;
  double top_p = 1;
  int64_t tokens() const { return rounds * blocks * (block_steps + 1); }  // of each stream
};

template <class T>
T must(Result<T> result) {
  if (!result.is_ok()) fail_bench(result.status().message());
  return std::move(result).value();
}
void must(const Status& status) {
  if (!status.is_ok()) fail_bench(status.message());
}
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

SamplingParams sampling_of(const Plan& plan, size_t stream) {
  SamplingParams params;
  params.temperature = plan.temperature;
  params.top_p = plan.top_p;
  params.seed = stream;
  return params;
}

// ---- the bare engine ------------------------------------------------------------------------------------------------

class Bare {
 public:
  Bare(LoadedModel& model, const Plan& plan) : model_(model), plan_(plan) {
    HybridCacheOptions options;
    options.budget_bytes = kCacheBytes;
    options.share_prefixes = false;
    cache_ = must(HybridCache::create(model.cache_layout(), options));
  }

  void begin(const Prompts& prompts) {
    tokens_.resize(prompts.size());
    for (size_t s = 0; s < prompts.size(); ++s) {
      samplers_.push_back(must(Sampler::create(sampling_of(plan_, s), model_.config().vocab_size, 0)));
      if (!cache_->admit(id(s), prompts[s], {}, plan_.prompt_tokens)) fail_bench("the streams do not fit the cache");
      plan_step(s, s + 1, prompts[s], StepMode::kPrefill);
      forward();
      commit_and_draw(s);
    }
  }

  // One step, then `count` more, whose forward passes are timed.
  double run(int64_t count) {
    double seconds = 0;
    for (int64_t i = 0; i <= count; ++i) {
      last_.clear();
      for (const std::vector<TokenId>& tokens : tokens_) last_.push_back(tokens.back());
      plan_step(0, tokens_.size(), last_, StepMode::kDecode);
      model_.exec().pool.parallel_for(plan_.streams, [](int64_t, int) {});
      const Clock::time_point begin = Clock::now();
      forward();
      if (i > 0) seconds += seconds_since(begin);
      commit_and_draw(0);
    }
    return seconds;
  }

  const std::vector<TokenId>& tokens(size_t stream) const { return tokens_[stream]; }

 private:
  static SeqId id(size_t stream) { return SeqId(static_cast<int32_t>(stream) + 1); }

  // All `tokens` belong to the streams [begin, end), as many to each.
  void plan_step(size_t begin, size_t end, const std::vector<TokenId>& tokens, StepMode mode) {
    const auto each = static_cast<int64_t>(tokens.size() / (end - begin));
    step_.tokens = tokens;
    step_.sequences.clear();
    views_.clear();
    for (size_t s = begin; s < end; ++s) {
      if (!cache_->prepare_step(id(s), each)) fail_bench("the streams do not fit the cache");
      step_.sequences.push_back({.cache = static_cast<int64_t>(s - begin),
                                 .num_tokens = each,
                                 .num_computed_tokens = cache_->length(id(s)),
                                 .mode = mode,
                                 .logits = LogitsWanted::kLast,
                                 .captures = {}});
      views_.push_back(cache_->view(id(s)));
    }
  }
  void forward() { logits_ = must(model_.model().forward(model_.exec(), step_, views_)); }
  void commit_and_draw(size_t first_stream) {
    const auto each = static_cast<size_t>(step_.sequences.front().num_tokens);
    for (size_t row = 0; row < step_.sequences.size(); ++row) {
      const size_t s = first_stream + row;
      must(cache_->commit_step(id(s), std::span(step_.tokens).subspan(row * each, each)));
      const std::span<const float> logits(logits_.row(static_cast<int64_t>(row)),
                                          static_cast<size_t>(logits_.shape[1]));
      const TokenId token = must(samplers_[s].sample(logits, scratch_));
      samplers_[s].accept(token);
      tokens_[s].push_back(token);
    }
  }

  LoadedModel& model_;
  const Plan& plan_;
  std::unique_ptr<HybridCache> cache_;
  std::vector<Sampler> samplers_;
  std::vector<std::vector<TokenId>> tokens_;  // drawn
  std::vector<TokenId> last_;
  StepPlan step_;
  std::vector<SequenceCacheView> views_;
  MatrixView<float> logits_;
  SamplerScratch scratch_;
};

// ---- the server and its clients -------------------------------------------------------------------------------------

class Observer final : public RequestObserver {
 public:
  explicit Observer(ServerMetrics& metrics) : metrics_(metrics) {}
  void on_tokens(double seconds, int64_t num_tokens) override { metrics_.observe_inter_token(seconds, num_tokens); }
  void on_finished(const RequestRecord&) override {}

 private:
  ServerMetrics& metrics_;
};

class Served {
 public:
  Served(LoadedModel& model, const Plan& plan) : plan_(plan), metrics_("bench"), observer_(metrics_) {
    ServingOptions options;
    options.run_thread = false;
    options.cache_bytes = kCacheBytes;
    engine_ = must(ServingEngine::create(model, options));
    ApiOptions api;
    api.served_names = {"bench"};
    http_ = must(HttpServer::start(
        {.port = 0}, must(ApiServer::create(*engine_, *must(model.tokenizer()), api, &observer_)).handler()));
  }

  // Returns when every stream decodes.
  void begin(const Prompts& prompts) {
    std::vector<std::string> bodies;
    for (size_t s = 0; s < prompts.size(); ++s) {
      std::vector<int32_t> ids;
      for (const TokenId token : prompts[s]) ids.push_back(token.value);
      bodies.push_back(Json{
          {"prompt", ids},
          {"max_tokens", 2 * plan_.tokens() + 1000},
          {"temperature", plan_.temperature},
          {"top_p", plan_.top_p},
          {"seed", s},
          {"ignore_eos", true},
          {"stream", true}}.dump());
    }
    clients_ = std::make_unique<StreamClients>(http_->port(), bodies);
    EngineMetrics before = engine_->metrics();
    for (int64_t drawn = 0, rows = 0; drawn != plan_.streams || rows != plan_.streams;) {
      if (!engine_->step()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const EngineMetrics after = engine_->metrics();
      drawn = after.generated_tokens - before.generated_tokens;
      rows = after.step_tokens - before.step_tokens;
      before = after;
    }
  }

  double run(int64_t count) {
    step();
    const Clock::time_point begin = Clock::now();
    for (int64_t i = 0; i < count; ++i) step();
    return seconds_since(begin);
  }

  std::vector<std::string> end() {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the last frames are on their way
    clients_->stop_reading();
    std::vector<std::string> texts;
    for (int64_t s = 0; s < plan_.streams; ++s) texts.push_back(clients_->text(static_cast<size_t>(s)));
    clients_ = nullptr;
    while (engine_->metrics().running > 0) engine_->step();
    return texts;
  }

 private:
  void step() {
    if (!engine_->step()) fail_bench("the streams ended early");
  }

  const Plan& plan_;
  ServerMetrics metrics_;
  Observer observer_;
  std::unique_ptr<ServingEngine> engine_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<StreamClients> clients_;
};

// ---- the measurement ------------------------------------------------------------------------------------------------

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}
Json spread(const std::vector<double>& values) {
  return {{"median", median(values)},
          {"min", *std::min_element(values.begin(), values.end())},
          {"max", *std::max_element(values.begin(), values.end())}};
}

double standard_error(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return count > 1 ? std::sqrt(squares / (count - 1) / count) : 0;
}

// The streams in text, as far as both sides have come.
void compare_texts(const Tokenizer& tokenizer, const Bare& bare, const std::vector<std::string>& served) {
  for (size_t s = 0; s < served.size(); ++s) {
    StreamDecoder decoder(tokenizer);
    std::string text;
    for (const TokenId token : bare.tokens(s)) text += decoder.append(token);
    const size_t common = std::min(text.size(), served[s].size());
    if (common == 0 || text.substr(0, common) != served[s].substr(0, common)) {
      fail_bench(
          cat("stream ", s, ": the server's tokens are not the engine's: \"", served[s], "\" and \"", text, "\""));
    }
  }
}

struct Round {
  std::vector<double> bare, served;  // seconds of a step, by block
  double difference() const { return mean(served) - mean(bare); }
  static double mean(const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  }
};

Round run_round(const Plan& plan, Bare& bare, Served& served) {
  Round round;
  const auto steps = static_cast<double>(plan.block_steps);
  for (int64_t i = 0; i < plan.blocks; ++i) {
    if (i % 2 == 0) round.bare.push_back(bare.run(plan.block_steps) / steps);
    round.served.push_back(served.run(plan.block_steps) / steps);
    if (i % 2 == 1) round.bare.push_back(bare.run(plan.block_steps) / steps);
  }
  return round;
}

Prompts random_prompts(const Plan& plan, const LoadedModel& model) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int32_t> id(0, static_cast<int32_t>(model.config().vocab_size * 3 / 4));
  Prompts prompts(static_cast<size_t>(plan.streams));
  for (auto& prompt : prompts) {
    for (int64_t i = 0; i < plan.prompt_tokens; ++i) prompt.emplace_back(id(random));
  }
  return prompts;
}

Json measure(const Plan& plan, LoadedModel& model) {
  Bare bare(model, plan);
  Served served(model, plan);  // its threads are started before this one is bound
  model.bind_engine_thread();
  const Prompts prompts = random_prompts(plan, model);
  bare.begin(prompts);
  served.begin(prompts);
  std::vector<double> bare_ms, served_ms, differences, shares, pairs;
  for (int64_t r = 0; r < plan.rounds; ++r) {
    const Round round = run_round(plan, bare, served);
    bare_ms.push_back(1e3 * Round::mean(round.bare));
    served_ms.push_back(1e3 * Round::mean(round.served));
    differences.push_back(1e3 * round.difference());
    shares.push_back(round.difference() / Round::mean(round.bare));
    for (size_t i = 0; i < round.bare.size(); ++i) pairs.push_back(1e3 * (round.served[i] - round.bare[i]));
    std::fprintf(stderr, "round %lld: bare %.3f ms a step, served %.3f\n", static_cast<long long>(r + 1),
                 bare_ms.back(), served_ms.back());
  }
  compare_texts(*must(model.tokenizer()), bare, served.end());
  return {{"what", "a step of all streams through the server beside the bare engine's, taking turns"},
          {"streams", plan.streams},
          {"prompt_tokens", plan.prompt_tokens},
          {"tokens_of_each", plan.tokens()},
          {"temperature", plan.temperature},
          {"top_p", plan.top_p},
          {"rounds", plan.rounds},
          {"block_pairs", plan.rounds * plan.blocks},
          {"bare_step_ms", spread(bare_ms)},
          {"served_step_ms", spread(served_ms)},
          {"overhead_ms_by_round", differences},
          {"overhead_by_round", shares},
          {"overhead_ms", spread(differences)},
          {"overhead", spread(shares)},
          {"overhead_ms_median_of_pairs", median(pairs)},
          {"overhead_ms_standard_error", standard_error(pairs)},
          {"same_texts", true}};
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  using namespace tandem;
  CLI::App app{"Measures what a step of several streams costs a server beyond the bare engine; JSON on stdout."};
  Plan plan;
  app.add_option("MODEL", plan.model, "checkpoint folder")->required();
  app.add_option("--streams", plan.streams)->check(CLI::Range(1, 60))->capture_default_str();
  app.add_option("--prompt-tokens", plan.prompt_tokens)->check(CLI::Range(1, 100000))->capture_default_str();
  app.add_option("--block-steps", plan.block_steps, "timed steps of a block")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--blocks", plan.blocks, "of each kind in a round")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--rounds", plan.rounds, "of blocks, which give a median and a spread")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--threads", plan.threads, "of the engine (default: one for each core)")->check(CLI::Range(1, 1024));
  app.add_option("--temperature", plan.temperature)->check(CLI::Range(0.0, 2.0))->capture_default_str();
  app.add_option("--top-p", plan.top_p)->check(CLI::Range(0.0, 1.0))->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  LoadOptions options;
  ThreadWish wish;
  if (plan.threads > 0) wish.num_threads = plan.threads;
  std::optional<double> quota;
  if (const auto found = cgroup_cpu_quota(std::string(kCgroupRoot), read_cgroup_membership())) quota = found->cpus;
  const ThreadPlacement threads = must(place_threads(read_cpu_topology("/sys", allowed_cpus()), quota, wish));
  options.num_threads = threads.num_threads;
  options.cpus = threads.cpus;
  options.context = plan.prompt_tokens + 2 * plan.tokens() + 1000;
  const std::unique_ptr<LoadedModel> model = must(LoadedModel::load(plan.model, options));
  std::puts(measure(plan, *model).dump(1).c_str());
}
