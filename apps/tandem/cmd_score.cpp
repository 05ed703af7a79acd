// tandem score: teacher-forced evaluation into a safetensors file; perplexity on stdout.
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "base/read_file.h"
#include "command.h"
#include "engine/score.h"
#include "model_flags.h"
#include "weights/safetensors_writer.h"

namespace tandem::app {
namespace {

struct ScoreFlags {
  CommonFlags common;
  ModelFlags model;
  ScoreOptions options;
  std::string input;
  std::string output;
};

Status write_output(const std::string& path, const std::vector<ScoreTensor>& tensors) {
  std::vector<TensorToWrite> to_write;
  for (const ScoreTensor& tensor : tensors) {
    std::visit(
        [&](const auto& values) {
          using T = typename std::decay_t<decltype(values)>::value_type;
          const DType dtype = std::is_same_v<T, float> ? DType::kF32 : DType::kI32;
          to_write.push_back({{tensor.name, dtype, tensor.shape}, std::as_bytes(std::span(values))});
        },
        tensor.values);
  }
  return write_safetensors(path, to_write);
}

void print_result(const ScoreFlags& flags, const ScoreResult& result) {
  if (!flags.common.json) {
    for (const PromptScore& prompt : result.prompts) {
      fmt::print("{}: {} tokens, negative log-likelihood {:.6f} over {} predictions\n", prompt.id, prompt.num_tokens,
                 prompt.negative_log_likelihood, prompt.num_scored);
    }
    if (std::isnan(result.perplexity())) {
      fmt::print("perplexity: none, no token was predicted\n");
    } else {
      fmt::print("perplexity {:.6f}\n", result.perplexity());
    }
    fmt::print("wrote {} tensors to {}\n", result.tensors.size(), flags.output);
    return;
  }
  nlohmann::ordered_json document;
  document["perplexity"] = std::isfinite(result.perplexity()) ? nlohmann::ordered_json(result.perplexity()) : nullptr;
  document["prompts"] = nlohmann::ordered_json::array();
  for (const PromptScore& prompt : result.prompts) {
    document["prompts"].push_back({{"id", prompt.id},
                                   {"tokens", prompt.num_tokens},
                                   {"scored", prompt.num_scored},
                                   {"negative_log_likelihood", prompt.negative_log_likelihood}});
  }
  document["output"] = flags.output;
  document["tensors"] = result.tensors.size();
  fmt::print("{}\n", document.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

// The numbers must not replace what they were made from.
Status check_output(const ScoreFlags& flags) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::equivalent(flags.output, flags.input, error)) {
    return Status::invalid(cat("--output ", flags.output, ": expected another file than --input"));
  }
  const fs::path folder = fs::absolute(fs::path(flags.output), error).parent_path();
  if (fs::exists(flags.output, error) && fs::equivalent(folder, flags.model.model_dir, error)) {
    return Status::invalid(
        cat("--output ", flags.output, ": expected a file outside the model folder, or a new one in it"));
  }
  return Status::ok();
}

// The rows of the largest step; every one of them has logits.
MemoryOptions needs_of(const ScoreFlags& flags, const std::vector<ScorePrompt>& prompts) {
  MemoryOptions needs = {.step_rows = 0};
  for (const ScorePrompt& prompt : prompts) {
    const auto length = static_cast<int64_t>(prompt.tokens.size());
    const int64_t rows = flags.options.decode              ? 1
                         : flags.options.prefill_chunk > 0 ? std::min(flags.options.prefill_chunk, length)
                                                           : length;
    needs.step_rows = flags.options.batch ? needs.step_rows + rows : std::max(needs.step_rows, rows);
  }
  needs.step_sequences = flags.options.batch ? static_cast<int64_t>(prompts.size()) : 1;
  needs.step_logit_rows = needs.step_rows;
  return needs;
}

int run_score(const ScoreFlags& flags) {
  const Status output = check_output(flags);
  if (!output.is_ok()) return report_error(output);
  const Result<std::string> text = read_file(flags.input, "a JSON file of prompts");
  if (!text.is_ok()) return report_error(text.status());
  const Result<std::vector<ScorePrompt>> prompts = parse_score_input(text.value(), flags.input);
  if (!prompts.is_ok()) return report_error(prompts.status());
  Result<std::unique_ptr<LoadedModel>> model = load_model(flags.model, flags.common, needs_of(flags, prompts.value()));
  if (!model.is_ok()) return report_error(model.status());
  model.value()->bind_engine_thread();
  const bool show_progress = isatty(STDERR_FILENO) != 0;
  const Result<ScoreResult> result =
      score(*model.value(), prompts.value(), flags.options, [&](int64_t done, int64_t total) {
        if (show_progress) fmt::print(stderr, "\rscored {}/{} tokens{}", done, total, done == total ? "\n" : "");
      });
  if (!result.is_ok()) return report_error(result.status());
  const Status written = write_output(flags.output, result.value().tensors);
  if (!written.is_ok()) return report_error(written);
  print_result(flags, result.value());
  return kExitOk;
}

}  // namespace

void register_score(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ScoreFlags>();
  CLI::App* command = app.add_subcommand("score", "Evaluate given token sequences and write the model's numbers");
  add_model_flags(command, flags->model, flags->common);
  command->add_option("--input", flags->input, R"(JSON: {"prompts":[{"id":"a","tokens":[1,2,3]}]})")->required();
  command->add_option("--output", flags->output, "safetensors file to write")->required();
  command->add_option("--prefill-chunk", flags->options.prefill_chunk, "tokens of one step (default: all)")
      ->check(CLI::Range(int64_t{1}, kMaxCount));
  auto* decode = command->add_flag("--decode", flags->options.decode, "one token at a time, through the decode path");
  decode->excludes(command->get_option("--prefill-chunk"));
  command->add_flag("--batch", flags->options.batch, "all prompts in one step plan");
  command->add_flag("--hidden", flags->options.hidden, "write layer outputs and the final hidden states");
  command->add_flag("--state", flags->options.state, "write KDA states, conv histories and MLA latents");
  command->add_flag("--router", flags->options.router, "write the chosen experts and their weights");
  command->footer(
      "Example:\n  tandem score models/my-k3 --input prompts.json --output out.safetensors --state --batch");
  command->callback([flags, &exit_code] { exit_code = run_score(*flags); });
}

}  // namespace tandem::app
