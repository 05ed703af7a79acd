// tandem serve: the OpenAI API over a model, for many clients at once.
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <array>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/cat.h"
#include "command.h"
#include "config_file.h"
#include "engine/serving/serving_engine.h"
#include "model_flags.h"
#include "sampling_flags.h"
#include "server/api_server.h"
#include "server/http_server.h"
#include "server/server_metrics.h"
#include "size_text.h"

namespace tandem::app {
namespace {

constexpr double kLastAnswerSeconds = 5;  // for what a stopping server tells its last clients

struct ServeFlags {
  CommonFlags common;
  ModelFlags model;
  HttpServerOptions http;
  ApiOptions api;
  ServingOptions serving;
  std::string config;
  std::vector<std::string> api_keys;
  std::string api_key_file;
  std::string cache_size;
  std::string swap_size = "1GiB";
  std::string max_body_size = "64MiB";
  double drain_seconds = 30;
  bool has_swap_size = false;
  bool no_prefix_cache = false;
  bool quiet = false;
};

// What requests report, into the histograms.
class MetricsObserver final : public RequestObserver {
 public:
  explicit MetricsObserver(ServerMetrics& metrics) : metrics_(metrics) {}

  void on_tokens(double seconds_since_last, int64_t num_tokens) override {
    metrics_.observe_inter_token(seconds_since_last, num_tokens);
  }

  void on_finished(const RequestRecord& record) override {
    RequestObservation observation;
    for (const RequestEnd end : record.ends) observation.finish = worse(observation.finish, end);
    observation.times = record.times;
    observation.prompt_tokens = record.prompt_tokens;
    observation.generated_tokens = record.generated_tokens;
    observation.max_tokens = record.max_tokens;
    observation.num_candidates = record.num_candidates;
    if (record.times.first_token > 0) metrics_.observe_first_token(record.times.first_token - record.times.arrived);
    metrics_.observe(observation);
  }

 private:
  // A request counts once: as its least complete candidate.
  static EngineFinish worse(EngineFinish so_far, RequestEnd end) {
    constexpr std::array kFinish = {EngineFinish::kStop, EngineFinish::kLength, EngineFinish::kAbort,
                                    EngineFinish::kError};
    return std::max(so_far, kFinish[static_cast<size_t>(end)]);
  }

  ServerMetrics& metrics_;
};

// The bundled model beside where the command runs or beside the program; empty: neither.
std::string bundled_model() {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const fs::path& folder :
       {fs::path("models/nano"), program / "../models/nano", program / "../share/tandem/models/nano"}) {
    if (fs::exists(folder / "config.json", ignored)) return fs::weakly_canonical(folder, ignored).string();
  }
  return "";
}

std::string folder_name(const std::string& dir) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path whole = fs::weakly_canonical(dir, ignored);
  return whole.filename().empty() ? whole.parent_path().filename().string() : whole.filename().string();
}

constexpr double kStreamedCacheShare = 0.125;  // of the memory budget, when experts are streamed

// The sizes of the flags; a cache without one is left to the engine, or to the budget of a streamed model.
Status resolve_sizes(ServeFlags& flags, MemoryOptions& needs) {
  if (!flags.cache_size.empty()) {
    const Result<int64_t> bytes = size_flag("--cache-size", flags.cache_size);
    if (!bytes.is_ok()) return bytes.status();
    flags.serving.cache_bytes = bytes.value();
  }
  const Result<int64_t> swap = size_flag("--swap-size", flags.swap_size);
  if (!swap.is_ok()) return swap.status();
  flags.serving.swap_bytes = swap.value();
  needs.step_rows = flags.serving.scheduler.token_budget;
  needs.step_sequences = flags.serving.scheduler.max_running;
  needs.cache_bytes = flags.serving.cache_bytes.value_or(0) + (flags.has_swap_size ? swap.value() : 0);
  needs.cache_share = flags.serving.cache_bytes ? 0.0 : kStreamedCacheShare;
  return Status::ok();
}

// Within a budget, caches get what was promised to them and no more.
void keep_to_budget(ServeFlags& flags, const LoadedModel& model) {
  if (model.streamed() == nullptr) return;
  if (!flags.has_swap_size) flags.serving.swap_bytes = 0;
  if (flags.serving.cache_bytes) return;
  flags.serving.cache_bytes =
      model.streamed()->promised_cache_bytes() - (flags.has_swap_size ? flags.serving.swap_bytes : 0);
}

// The flags that need more than CLI11 to be understood, and what the model's files say.
Status resolve(ServeFlags& flags, const LoadedModel& model) {
  const Result<int64_t> body = size_flag("--max-body-size", flags.max_body_size);
  if (!body.is_ok()) return body.status();
  flags.http.max_body_bytes = body.value();
  for (const std::string& name : flags.api.served_names) {
    if (name.empty()) return Status::invalid("--served-model-name: expected a name, found an empty one");
  }
  if (!flags.serving.verify_dump_dir.empty()) {  // now, not when there is something to write
    std::error_code error;
    std::filesystem::create_directories(flags.serving.verify_dump_dir, error);
    if (error) {
      return Status::io(cat("--verify-dump: ", flags.serving.verify_dump_dir, ": cannot be made: ", error.message()));
    }
  }
  flags.serving.context_limit = model.context_limit();
  flags.serving.share_prefixes = !flags.no_prefix_cache;
  if (flags.api.served_names.empty()) flags.api.served_names = {folder_name(model.dir())};
  const Result<SamplingParams> sampling = resolve_sampling(SamplingFlags{}, model.generation_config());
  if (!sampling.is_ok()) return sampling.status();
  flags.api.default_sampling = sampling.value();
  flags.api.stop_tokens = model.stop_tokens();
  flags.api.version = TANDEM_VERSION;
  flags.api.created = static_cast<int64_t>(std::time(nullptr));
  return Status::ok();
}

void log_exchange(const HttpLogEntry& entry) {
  spdlog::info("{} {} {} {} {:.3f} s{}", entry.peer, entry.method, entry.path, entry.status, entry.seconds,
               entry.is_client_gone ? ", client gone" : "");
}

void announce(const ServeFlags& flags, const HttpServer& http, const ServingEngine& engine) {
  const ModelFacts facts = engine.facts();
  const EngineMetrics metrics = engine.metrics();
  if (flags.common.json) {
    nlohmann::ordered_json line = {{"url", http.url()},
                                   {"models", flags.api.served_names},
                                   {"context", facts.context_limit},
                                   {"hash_unit", facts.hash_unit},
                                   {"cache_blocks", metrics.blocks_total}};
    fmt::print("{}\n", line.dump());
  } else {
    fmt::print("serving {} on {}  (context {} tokens, {} cache blocks)\n", fmt::join(flags.api.served_names, ", "),
               http.url(), facts.context_limit, metrics.blocks_total);
  }
  std::fflush(stdout);
}

// SIGINT and SIGTERM belong to sigwait() in every thread from here on: call it before the first one starts.
sigset_t hold_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return signals;
}

// Lets requests finish; a second signal ends the process at once.
void stop_gracefully(const ServeFlags& flags, HttpServer& http, ServingEngine& engine, const sigset_t& signals) {
  spdlog::info("stopping: {} requests may finish within {} s; again to stop at once", http.stats().exchanges,
               flags.drain_seconds);
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  // The engine ends what is still running when the time is over, while the connections still carry what their clients
  // are told of it.
  std::thread engine_drain([&] { engine.drain(flags.drain_seconds); });
  const int64_t cut = http.drain(flags.drain_seconds + kLastAnswerSeconds);
  engine_drain.join();
  if (cut > 0) spdlog::warn("{} connections were cut off", cut);
}

int run_serve(ServeFlags& flags) {
  const sigset_t signals = hold_signals();
  if (flags.model.model_dir.empty()) flags.model.model_dir = bundled_model();
  if (flags.model.model_dir.empty()) {
    return report_error(
        Status::not_found("no MODEL given, and the bundled models/nano is neither here nor beside the "
                          "program"));
  }
  const char* environment = std::getenv("TANDEM_API_KEY");
  Result<ApiKeys> keys = ApiKeys::load(
      flags.api_keys, environment ? std::optional<std::string>(environment) : std::nullopt, flags.api_key_file);
  if (!keys.is_ok()) return report_error(keys.status());

  MemoryOptions needs;
  if (const Status status = resolve_sizes(flags, needs); !status.is_ok()) return report_error(status);
  Result<std::unique_ptr<LoadedModel>> model = load_model(flags.model, flags.common, needs);
  if (!model.is_ok()) return report_error(model.status());
  const Result<const Tokenizer*> tokenizer = model.value()->tokenizer();
  if (!tokenizer.is_ok()) return report_error(tokenizer.status());
  if (const Status status = resolve(flags, *model.value()); !status.is_ok()) return report_error(status);
  keep_to_budget(flags, *model.value());
  flags.serving.on_event = [](const EngineEvent& event) {
    event.severity == EventSeverity::kError ? spdlog::error("{}", event.message) : spdlog::info("{}", event.message);
  };
  Result<std::unique_ptr<ServingEngine>> engine = ServingEngine::create(*model.value(), flags.serving);
  if (!engine.is_ok()) return report_error(engine.status());

  ServerMetrics metrics(flags.api.served_names.front());
  MetricsObserver observer(metrics);
  HttpServer* server = nullptr;  // set before the first request can ask
  std::optional<HttpServerStats> none;
  const bool is_open = keys.value().is_open();
  const Result<ApiServer> api = ApiServer::create(
      *engine.value(), *tokenizer.value(), flags.api, &observer,
      [&] {
        return metrics.render(engine.value()->metrics(), engine.value()->health(), server ? server->stats() : none);
      },
      std::move(keys).value());
  if (!api.is_ok()) return report_error(api.status());
  HttpServerHooks hooks;
  if (!flags.quiet) hooks.on_exchange = log_exchange;
  hooks.on_problem = [](const std::string& problem) { spdlog::error("{}", problem); };
  const Result<std::unique_ptr<HttpServer>> http =
      HttpServer::start(flags.http, api.value().handler(), std::move(hooks));
  if (!http.is_ok()) return report_error(http.status());
  server = http.value().get();
  if (is_open && !server->is_loopback()) {
    spdlog::warn("{} can be reached from other machines and asks for no key: set --api-key", server->url());
  }
  announce(flags, *server, *engine.value());

  int signal = 0;
  sigwait(&signals, &signal);
  stop_gracefully(flags, *server, *engine.value(), signals);
  return kExitOk;
}

void add_serving_flags(CLI::App* command, ServeFlags& flags) {
  command
      ->add_option("--verify-cache", flags.serving.verify_rate,
                   "share of cache hits computed again in idle time and compared")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--verify-dump", flags.serving.verify_dump_dir, "folder for what a failed verification found");
  command->add_option("--cache-size", flags.cache_size,
                      "memory of all cache blocks together, as 4GiB (default: half of the free memory)");
  command->add_option("--swap-size", flags.swap_size, "memory for the caches of preempted requests at most, as 1GiB")
      ->capture_default_str();
  command
      ->add_option("--hash-unit", flags.serving.hash_unit,
                   "tokens that prefixes are shared in multiples of; a multiple of 16")
      ->check(CLI::Range(int64_t{64}, int64_t{65536}))
      ->capture_default_str();
  command
      ->add_option("--checkpoint-interval", flags.serving.checkpoint_interval,
                   "tokens between KDA checkpoints of long prompts; 0: only at turns and prompt ends")
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->capture_default_str();
  command->add_flag(
      "--deterministic", flags.serving.deterministic,
      "the same request gives the same tokens and log-probabilities, bit for bit, alone, batched, resumed "
      "or preempted: replies are not reused from the cache but computed again as prompts");
  command->add_flag("--no-prefix-cache", flags.no_prefix_cache, "compute every prompt from its start");
  command->add_flag("--poison", flags.serving.poison, "fill unwritten cache with NaN and look for it (slower)");
  command
      ->add_option("--audit-steps", flags.serving.audit_steps,
                   "steps between two checks of the whole cache, and one when the engine falls idle; 0: never")
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->capture_default_str();
  command->add_option("--max-sequences", flags.serving.scheduler.max_running, "computed at the same time")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  command->add_option("--max-waiting", flags.serving.scheduler.max_waiting, "requests; more are told 429")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command->add_option("--step-tokens", flags.serving.scheduler.token_budget, "rows of one step at most")
      ->check(CLI::Range(int64_t{16}, int64_t{65536}))
      ->capture_default_str();
  command
      ->add_option(
          "--step-seconds", flags.serving.scheduler.step_seconds,
          "at most, as predicted, for a step while replies are being generated: a long prompt is computed in pieces "
          "that keep to it; 0: no limit")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
}

void add_api_flags(CLI::App* command, ServeFlags& flags) {
  command->add_option("--served-model-name", flags.api.served_names,
                      "ids the API answers to (default: the base name of MODEL's folder)");
  command->add_flag("--accept-any-model", flags.api.accept_any_model, "answer whatever model a request names");
  command->add_option("--api-key", flags.api_keys, "a key that may ask; repeatable; also TANDEM_API_KEY");
  command->add_option("--api-key-file", flags.api_key_file, "a file of keys, one a line");
  command->add_flag("--stream-tool-arguments", flags.api.stream_tool_arguments,
                    "stream a tool call's arguments while they are written, not when the call is complete");
  command->add_flag("--explain-cache", flags.api.explain_cache, "usage says on every reply what the cache gave");
  command->add_flag("--copy-reasoning", flags.api.copy_reasoning, "`reasoning` beside `reasoning_content`");
  command->add_flag("--strict", flags.api.strict_vendor, "refuse the sampling parameters that the hosted API refuses");
}

void add_http_flags(CLI::App* command, ServeFlags& flags) {
  command->add_option("--host", flags.http.host, "numeric address or localhost to listen on; :: or 0.0.0.0 for all")
      ->capture_default_str();
  command->add_option("--port", flags.http.port, "TCP port to listen on; 0: one the system chooses")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command->add_option("--max-body-size", flags.max_body_size, "size of a request's body at most, as 64MiB")
      ->capture_default_str();
  command
      ->add_option("--max-connections", flags.http.max_connections,
                   "connections open at the same time at most; more are told 503")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command->add_option("--cors-origin", flags.http.cors_origin, "web pages that may ask; empty: none")
      ->capture_default_str();
  command->add_option("--drain-seconds", flags.drain_seconds, "for requests to finish after SIGTERM")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  command->add_flag("--quiet", flags.quiet, "no log line for each request");
}

}  // namespace

void register_serve(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* command = app.add_subcommand("serve", "Serve the OpenAI API");
  add_model_flags(command, flags->model, flags->common);
  command->get_option("MODEL")->required(false)->description(
      "checkpoint folder in the released format (default: the bundled models/nano)");
  add_http_flags(command, *flags);
  add_api_flags(command, *flags);
  add_serving_flags(command, *flags);
  CLI::Option* swap = command->get_option("--swap-size");
  command->add_option("--config", flags->config, "TOML or INI file; its keys are the flags' names");
  command->footer(
      "Examples:\n  tandem serve\n  tandem serve models/my-k3 --host 0.0.0.0 --api-key \"$KEY\" --verify-cache 0.01\n"
      "  curl http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \\\n"
      "    -d '{\"model\":\"nano\",\"messages\":[{\"role\":\"user\",\"content\":\"What is 17 plus 25?\"}]}'");
  command->callback([command, flags, swap, &exit_code] {
    const Status status = flags->config.empty() ? Status::ok() : apply_config_file(*command, flags->config);
    flags->has_swap_size = swap->count() > 0;
    exit_code = status.is_ok() ? run_serve(*flags) : report_error(status);
  });
}

}  // namespace tandem::app
