#include "server/server_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "base/cat.h"

namespace tandem {
namespace {

// The text format, read strictly: names, label syntax, a TYPE before the samples of each family, no sample twice.
struct Scrape {
  explicit Scrape(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind("# TYPE ", 0) == 0) {
        const size_t space = line.find(' ', 7);
        EXPECT_TRUE(types.emplace(line.substr(7, space - 7), line.substr(space + 1)).second) << line;
      } else if (line.rfind("# HELP ", 0) != 0) {
        add_sample(line);
      }
    }
    EXPECT_TRUE(text.empty() || text.back() == '\n');
  }

  void add_sample(const std::string& line) {
    const size_t space = line.rfind(' ');
    ASSERT_NE(space, std::string::npos) << line;
    const std::string series = line.substr(0, space);
    const size_t brace = series.find('{');
    ASSERT_NE(brace, std::string::npos) << "every series has model_name: " << line;
    EXPECT_EQ(series.back(), '}') << line;
    EXPECT_THAT(series, testing::HasSubstr("model_name=\"nano\"")) << line;
    const std::string name = series.substr(0, brace);
    for (const char c : name) EXPECT_TRUE(std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == ':') << line;
    EXPECT_TRUE(has_type(name)) << line;
    char* end = nullptr;
    const double value = std::strtod(line.c_str() + space + 1, &end);
    EXPECT_EQ(*end, '\0') << line;
    EXPECT_TRUE(samples.emplace(series, value).second) << "twice: " << line;
    names.insert(name);
  }

  bool has_type(const std::string& name) const {
    if (types.count(name) != 0) return true;
    for (const char* suffix : {"_bucket", "_sum", "_count"}) {
      const std::string ending = suffix;
      if (name.size() <= ending.size() || name.substr(name.size() - ending.size()) != ending) continue;
      const auto type = types.find(name.substr(0, name.size() - ending.size()));
      if (type != types.end() && type->second == "histogram") return true;
    }
    return false;
  }

  // The sample of this name whose labels contain all of `labels`.
  double value(const std::string& name, const std::vector<std::string>& labels = {}) const {
    for (const auto& [series, number] : samples) {
      if (series.rfind(name + "{", 0) != 0) continue;
      bool is_match = true;
      for (const std::string& label : labels) is_match = is_match && series.find(label) != std::string::npos;
      if (is_match) return number;
    }
    ADD_FAILURE() << "no sample " << name;
    return NAN;
  }

  std::map<std::string, std::string> types;
  std::map<std::string, double> samples;
  std::set<std::string> names;
};

EngineMetrics some_engine() {
  EngineMetrics engine;
  engine.running = 4;
  engine.waiting = 2;
  engine.cache_usage = 0.25;
  engine.prompt_tokens = 1000;
  engine.generated_tokens = 300;
  engine.prefix_query_tokens = 1000;
  engine.prefix_hit_tokens = 640;
  engine.preemptions = 3;
  engine.steps = 5;
  engine.steps_by_tokens[0] = 2;
  engine.steps_by_tokens[3] = 2;   // 5 to 8 tokens
  engine.steps_by_tokens[14] = 1;  // above all bounds
  engine.step_tokens = 9018;
  engine.blocks_total = 100;
  engine.blocks_free = 60;
  engine.blocks_evictable = 15;
  engine.blocks_evicted = 7;
  engine.checkpoints = 9;
  engine.refused_checkpoints = 6;
  engine.refused_non_finite = 11;
  engine.copied_bytes = 4096;
  engine.scrubbed_bytes = 512;
  engine.expert_slots = 640;
  engine.expert_hits = 31;
  engine.expert_ahead = 7;
  engine.expert_misses = 5;
  engine.expert_bytes_read = 1671168;
  engine.expert_stall_seconds = 0.25;
  engine.audits = 30;
  engine.audits_failed = 1;
  engine.kda_state_bytes = 4000;
  engine.mla_latent_bytes = 2000;
  engine.padding_bytes = 100;
  engine.cache_dtype = "bf16";
  engine.verify_rate_wanted = 0.5;
  engine.verify_hits = 8;
  engine.verify_done = 2;
  engine.verify_skipped = 1;
  engine.verify_seconds = 1.5;
  return engine;
}

TEST(ServerMetrics, NamesAndTypesAreThoseOfDashboards) {
  ServerMetrics metrics("nano");
  const Scrape scrape(metrics.render({}, {}));
  for (const char* name : {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"}) {
    EXPECT_EQ(scrape.types.at(name), "gauge") << name;
  }
  for (const char* name :
       {"vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total",
        "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:num_preemptions_total"}) {
    EXPECT_EQ(scrape.types.at(name), "counter") << name;
    EXPECT_EQ(scrape.names.count(name), 1u) << name << " is there before anything happened";
  }
  for (const char* name :
       {"vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds",
        "vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds",
        "vllm:request_decode_time_seconds", "vllm:request_inference_time_seconds", "vllm:request_prompt_tokens",
        "vllm:request_generation_tokens", "vllm:iteration_tokens_total", "vllm:request_params_max_tokens",
        "vllm:request_params_n"}) {
    EXPECT_EQ(scrape.types.at(name), "histogram") << name;
    EXPECT_EQ(scrape.value(cat(name, "_count")), 0) << name;
  }
  for (const auto& [name, type] : scrape.types) {
    EXPECT_TRUE(type != "counter" || testing::Matches(testing::EndsWith("_total"))(name)) << name;
    EXPECT_TRUE(name.rfind("vllm:", 0) == 0 || name.rfind("tandem:", 0) == 0) << name;
  }
  for (const char* reason : {"stop", "length", "abort"}) {
    EXPECT_EQ(scrape.value("vllm:request_success_total", {cat("finished_reason=\"", reason, "\"")}), 0);
  }
}

TEST(ServerMetrics, EngineNumbersArriveWhole) {
  ServerMetrics metrics("nano");
  EngineHealth health;
  health.is_ready = true;
  health.heartbeat_age_seconds = 0.125;
  const HttpServerStats http = {12, 5, 40, 1};
  const Scrape scrape(metrics.render(some_engine(), health, http));
  EXPECT_EQ(scrape.value("vllm:num_requests_running"), 4);
  EXPECT_EQ(scrape.value("vllm:kv_cache_usage_perc"), 0.25);
  EXPECT_EQ(scrape.value("vllm:prompt_tokens_total"), 1000);
  EXPECT_EQ(scrape.value("vllm:prefix_cache_hits_total"), 640);
  EXPECT_EQ(scrape.value("tandem:pool_blocks", {"state=\"free\""}), 60);
  EXPECT_EQ(scrape.value("tandem:pool_blocks_evicted_total"), 7);
  EXPECT_EQ(scrape.value("tandem:checkpoints"), 9);
  EXPECT_EQ(scrape.value("tandem:cache_refused_total", {"reason=\"checksum\""}), 6);
  EXPECT_EQ(scrape.value("tandem:cache_refused_total", {"reason=\"non_finite\""}), 11);
  EXPECT_EQ(scrape.value("tandem:cache_copied_bytes_total"), 4096);
  EXPECT_EQ(scrape.value("tandem:cache_scrubbed_bytes_total"), 512);
  EXPECT_EQ(scrape.value("tandem:expert_slots"), 640);
  EXPECT_EQ(scrape.value("tandem:experts_total", {"result=\"hit\""}), 31);
  EXPECT_EQ(scrape.value("tandem:experts_total", {"result=\"ahead\""}), 7);
  EXPECT_EQ(scrape.value("tandem:experts_total", {"result=\"miss\""}), 5);
  EXPECT_EQ(scrape.value("tandem:expert_read_bytes_total"), 1671168);
  EXPECT_EQ(scrape.value("tandem:expert_stall_seconds_total"), 0.25);
  EXPECT_EQ(scrape.value("tandem:cache_audits_total", {"result=\"sound\""}), 29);
  EXPECT_EQ(scrape.value("tandem:cache_audits_total", {"result=\"failed\""}), 1);
  EXPECT_EQ(scrape.value("tandem:verify_wanted_rate"), 0.5);
  EXPECT_EQ(scrape.value("tandem:verify_achieved_rate"), 0.25);
  EXPECT_EQ(scrape.value("tandem:verify_total", {"result=\"skipped\""}), 1);
  EXPECT_EQ(scrape.value("tandem:verify_total", {"result=\"failed\""}), 0);
  EXPECT_EQ(scrape.value("tandem:verify_seconds_total"), 1.5);
  EXPECT_EQ(scrape.value("tandem:resident_bytes", {"kind=\"kda_state\"", "dtype=\"bf16\""}), 4000);
  EXPECT_EQ(scrape.value("tandem:resident_bytes_per_request", {"kind=\"mla_latent\"", "dtype=\"bf16\""}), 500);
  EXPECT_EQ(scrape.value("tandem:engine_heartbeat_age_seconds"), 0.125);
  EXPECT_EQ(scrape.value("tandem:engine_ready"), 1);
  EXPECT_EQ(scrape.value("tandem:http_connections"), 12);
  EXPECT_EQ(scrape.value("tandem:http_connections_total"), 40);
  // The steps: cumulative buckets.
  EXPECT_EQ(scrape.value("vllm:iteration_tokens_total_bucket", {"le=\"1\""}), 2);
  EXPECT_EQ(scrape.value("vllm:iteration_tokens_total_bucket", {"le=\"4\""}), 2);
  EXPECT_EQ(scrape.value("vllm:iteration_tokens_total_bucket", {"le=\"8\""}), 4);
  EXPECT_EQ(scrape.value("vllm:iteration_tokens_total_bucket", {"le=\"8192\""}), 4);
  EXPECT_EQ(scrape.value("vllm:iteration_tokens_total_bucket", {"le=\"+Inf\""}), 5);
  EXPECT_EQ(scrape.value("vllm:iteration_tokens_total_count"), 5);
  EXPECT_EQ(scrape.value("vllm:iteration_tokens_total_sum"), 9018);
}

TEST(ServerMetrics, CountersNeverGoDown) {
  ServerMetrics metrics("nano");
  const Scrape before(metrics.render(some_engine(), {}, HttpServerStats{1, 1, 10, 2}));
  const Scrape reset(metrics.render({}, {}, HttpServerStats{}));
  const Scrape again(metrics.render(some_engine(), {}, HttpServerStats{1, 1, 11, 2}));
  for (const auto& [series, value] : before.samples) {
    const std::string name = series.substr(0, series.find('{'));
    const bool is_gauge = before.types.count(name) != 0 && before.types.at(name) == "gauge";
    if (is_gauge || series.find("dtype=") != std::string::npos) continue;
    EXPECT_GE(reset.samples.at(series), value) << series;
    EXPECT_GE(again.samples.at(series), value) << series;
  }
  EXPECT_EQ(again.value("vllm:prompt_tokens_total"), 1000);
  EXPECT_EQ(again.value("tandem:http_connections_total"), 11);
  EXPECT_EQ(reset.value("vllm:num_requests_running"), 0) << "a gauge does";
}

TEST(ServerMetrics, RequestsAreObserved) {
  ServerMetrics metrics("nano");
  RequestObservation request;
  request.times = {10, 10.5, 12, 15};
  request.finish = EngineFinish::kLength;
  request.prompt_tokens = 100;
  request.generated_tokens = 31;
  request.max_tokens = 31;
  request.num_candidates = 2;
  metrics.observe(request);
  RequestObservation aborted;  // in the queue
  aborted.finish = EngineFinish::kAbort;
  aborted.times = {20, 0, 0, 21};
  metrics.observe(aborted);
  metrics.observe_first_token(2);
  metrics.observe_inter_token(0.3, 3);
  metrics.observe_inter_token(0.05);
  metrics.observe_inter_token(1, 0);
  const Scrape scrape(metrics.render({}, {}));
  EXPECT_EQ(scrape.value("vllm:request_success_total", {"finished_reason=\"length\""}), 1);
  EXPECT_EQ(scrape.value("vllm:request_success_total", {"finished_reason=\"abort\""}), 1);
  EXPECT_EQ(scrape.value("vllm:e2e_request_latency_seconds_sum"), 6);
  EXPECT_EQ(scrape.value("vllm:e2e_request_latency_seconds_count"), 2);
  EXPECT_EQ(scrape.value("vllm:request_queue_time_seconds_sum"), 0.5);
  EXPECT_EQ(scrape.value("vllm:request_prefill_time_seconds_sum"), 1.5);
  EXPECT_EQ(scrape.value("vllm:request_decode_time_seconds_sum"), 3);
  EXPECT_EQ(scrape.value("vllm:request_inference_time_seconds_sum"), 4.5);
  EXPECT_EQ(scrape.value("vllm:request_inference_time_seconds_count"), 1);
  EXPECT_EQ(scrape.value("vllm:request_generation_tokens_sum"), 31);
  EXPECT_EQ(scrape.value("vllm:request_params_max_tokens_count"), 1);
  EXPECT_EQ(scrape.value("vllm:request_params_n_sum"), 3);
  EXPECT_EQ(scrape.value("vllm:time_to_first_token_seconds_sum"), 2);
  EXPECT_EQ(scrape.value("vllm:time_to_first_token_seconds_bucket", {"le=\"2\""}), 1) << "a bound is in its bucket";
  for (const char* name : {"vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"}) {
    EXPECT_EQ(scrape.value(cat(name, "_count")), 4);
    EXPECT_NEAR(scrape.value(cat(name, "_sum")), 0.35, 1e-12);
  }
}

TEST(ServerMetrics, ManyThreadsObserveWhileOthersScrape) {
  ServerMetrics metrics("nano");
  constexpr int kEach = 500;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        metrics.observe_first_token(0.01);
        metrics.observe({});
        if (i % 100 == 0) metrics.render(some_engine(), {});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Scrape scrape(metrics.render(some_engine(), {}));
  EXPECT_EQ(scrape.value("vllm:time_to_first_token_seconds_count"), 3 * kEach);
  EXPECT_EQ(scrape.value("vllm:request_success_total", {"finished_reason=\"stop\""}), 3 * kEach);
  EXPECT_EQ(scrape.value("vllm:iteration_tokens_total_count"), 5);
}

}  // namespace
}  // namespace tandem
