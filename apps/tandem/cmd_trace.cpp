// tandem trace: record which experts each generated token chooses, or replay such a record against caches.
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "base/read_file.h"
#include "command.h"
#include "engine/generate.h"
#include "engine/routing_trace.h"
#include "engine/score.h"
#include "model_flags.h"
#include "sampling_flags.h"
#include "trace_replay_command.h"

namespace tandem::app {
namespace {

struct TraceFlags {
  CommonFlags common;
  ModelFlags model;
  SamplingFlags sampling;
  std::string prompt;
  std::string input;
  std::string output;
  bool with_prompt = false;
  int64_t max_tokens = 300;
  TraceReplayFlags replay;
};

// The prompts to go on from: those of the file, or the text.
Result<std::vector<std::vector<TokenId>>> prompts_of(const TraceFlags& flags, const LoadedModel& model) {
  std::vector<std::vector<TokenId>> prompts;
  if (!flags.input.empty()) {
    const Result<std::string> text = read_file(flags.input, "a JSON file of prompts");
    if (!text.is_ok()) return text.status();
    Result<std::vector<ScorePrompt>> read = parse_score_input(text.value(), flags.input);
    if (!read.is_ok()) return read.status();
    for (ScorePrompt& prompt : read.value()) prompts.push_back(std::move(prompt.tokens));
    return prompts;
  }
  const Result<const Tokenizer*> tokenizer = model.tokenizer();
  if (!tokenizer.is_ok()) return tokenizer.status();
  if (flags.prompt.empty()) return Status::invalid("no prompt: expected text, or token ids in a file with --input");
  Result<std::vector<TokenId>> tokens = tokenizer.value()->encode_text(flags.prompt);
  if (!tokens.is_ok()) return tokens.status();
  prompts.push_back(std::move(tokens).value());
  return prompts;
}

// Steps after the prompt's are recorded from the first sampled token on; with_prompt records every row.
Status record(const TraceFlags& flags, LoadedModel& model, const std::vector<std::vector<TokenId>>& prompts,
              RoutingTrace& trace) {
  Generator generator(model);
  generator.set_observer(&trace);
  const Result<SamplingParams> sampling = resolve_sampling(flags.sampling, model.generation_config());
  if (!sampling.is_ok()) return sampling.status();
  for (const std::vector<TokenId>& prompt : prompts) {
    GenerateRequest request;
    request.prompt = prompt;
    request.sampling = sampling.value();
    request.max_tokens = flags.max_tokens;
    request.ignore_eos = true;
    trace.record(flags.with_prompt);
    const Result<GenerateResult> result = generator.run(request, [&](TokenId) {
      trace.record(true);
      return true;
    });
    if (!result.is_ok()) return result.status();
  }
  return trace.finish();
}

int run_trace(const TraceFlags& flags) {
  if (!flags.replay.file.empty()) return run_trace_replay(flags.replay, flags.common.json);
  if (flags.model.model_dir.empty() || flags.output.empty()) {
    return report_error(Status::invalid("expected MODEL and --output to record a trace, or --replay FILE"));
  }
  Result<std::unique_ptr<LoadedModel>> model = load_model(flags.model, flags.common);
  if (!model.is_ok()) return report_error(model.status());
  if (model.value()->config().num_experts == 0) {
    return report_error(Status::invalid(cat(flags.model.model_dir, ": the model has no routed experts to trace")));
  }
  const Result<std::vector<std::vector<TokenId>>> prompts = prompts_of(flags, *model.value());
  if (!prompts.is_ok()) return report_error(prompts.status());
  Result<RoutingTrace> trace = RoutingTrace::create(flags.output);
  if (!trace.is_ok()) return report_error(trace.status());
  const Status status = record(flags, *model.value(), prompts.value(), trace.value());
  if (!status.is_ok()) return report_error(status);
  if (flags.common.json) {
    const nlohmann::ordered_json line = {{"output", flags.output}, {"tokens", trace.value().num_tokens()}};
    fmt::print("{}\n", line.dump());
  } else {
    fmt::print("wrote the experts of {} tokens to {}\n", trace.value().num_tokens(), flags.output);
  }
  return kExitOk;
}

}  // namespace

void register_trace(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<TraceFlags>();
  CLI::App* command =
      app.add_subcommand("trace", "Record which experts each generated token chooses, or replay a record");
  add_model_flags(command, flags->model, flags->common);
  command->get_option("MODEL")->required(false);
  CLI::Option* prompt = command->add_option("PROMPT", flags->prompt, "text to go on from");
  command->add_option("--input", flags->input, R"(instead: JSON {"prompts":[{"id":"a","tokens":[1,2,3]}]})")
      ->excludes(prompt);
  command->add_option("--output", flags->output, "file to write, one JSON object a token");
  command
      ->add_option("--max-tokens", flags->max_tokens, "tokens to generate after each prompt; stop tokens do not stop")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->capture_default_str();
  command->add_flag("--with-prompt", flags->with_prompt, "the prompts' own tokens too");
  add_sampling_flags(command, flags->sampling);
  command->add_option("--replay", flags->replay.file, "instead: print what caches of experts hit on this record")
      ->excludes("MODEL")
      ->excludes("--output");
  command->add_option("--capacity", flags->replay.percents, "of --replay: percent of all experts, as 10,25,50")
      ->delimiter(',')
      ->capture_default_str();
  command
      ->add_option("--experts", flags->replay.num_experts,
                   "of --replay: experts of a layer (default: the record's largest id + 1)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16));
  command->footer(
      "Examples:\n  tandem trace --replay t.jsonl --capacity 10,25,50\n  tandem trace models/my-k3 \"Write a sorting "
      "function.\" --max-tokens 300 --output t.jsonl");
  command->callback([flags, &exit_code] { exit_code = run_trace(*flags); });
}

}  // namespace tandem::app
