// tandem run: generate from a prompt, streaming; without one on a terminal, chat.
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <iostream>
#include <iterator>

#include "base/cat.h"
#include "chat_session.h"
#include "command.h"
#include "engine/generate.h"
#include "kernels/kda/kda.h"
#include "model_flags.h"
#include "run_output.h"
#include "sampling_flags.h"

namespace tandem::app {
namespace {

struct RunFlags {
  CommonFlags common;
  ModelFlags model;
  SamplingFlags sampling;
  std::string prompt;
  bool has_prompt = false;
  std::string tokens;  // "1,2,3"
  bool has_tokens = false;
  bool chat = false;
  bool raw = false;
  bool ignore_eos = false;
  bool stats = false;
  bool deterministic = false;
  int64_t max_tokens = 256;
  int64_t prefill_chunk = kDefaultPrefillChunk;
};

// Decimal ids separated by commas, nothing else.
Result<std::vector<TokenId>> parse_token_list(std::string_view list) {
  std::vector<TokenId> ids;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t comma = std::min(list.find(',', begin), list.size());
    const std::string_view item = list.substr(begin, comma - begin);
    TokenId id;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), id.value);
    if (error != std::errc() || end != item.data() + item.size()) {
      return Status::invalid(
          cat("--tokens: expected ids separated by commas, for example 1,2,3, found \"", item, "\""));
    }
    ids.push_back(id);
    begin = comma + 1;
  }
  return ids;
}

Result<std::vector<TokenId>> prompt_tokens(const RunFlags& flags, const LoadedModel& model) {
  if (flags.has_tokens) {
    return parse_token_list(flags.tokens);
  }
  const Result<const Tokenizer*> tokenizer = model.tokenizer();
  if (!tokenizer.is_ok()) return tokenizer.status();
  if (flags.prompt.empty()) return Status::invalid("the prompt is empty: expected text, or token ids with --tokens");
  return tokenizer.value()->encode_text(flags.prompt);
}

Result<GenerateRequest> make_request(const RunFlags& flags, const LoadedModel& model, std::vector<TokenId> prompt) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  Result<SamplingParams> sampling = resolve_sampling(flags.sampling, model.generation_config());
  if (!sampling.is_ok()) return sampling.status();
  request.sampling = std::move(sampling).value();
  request.max_tokens = flags.max_tokens;
  request.ignore_eos = flags.ignore_eos;
  request.stop_tokens = model.stop_tokens();
  request.prefill_chunk = flags.prefill_chunk;
  request.reuse_cache = !flags.deterministic;
  if (flags.deterministic && flags.prefill_chunk % kKdaChunk != 0) {
    return Status::invalid(cat("--prefill-chunk is ", flags.prefill_chunk, ", expected a multiple of ", kKdaChunk,
                               " with --deterministic: other splits of a prompt round differently"));
  }
  return request;
}

// Text or token ids in, the continuation out.
int run_raw(const RunFlags& flags, LoadedModel& model) {
  Result<std::vector<TokenId>> prompt = prompt_tokens(flags, model);
  if (!prompt.is_ok()) return report_error(prompt.status());
  const Result<GenerateRequest> request = make_request(flags, model, std::move(prompt).value());
  if (!request.is_ok()) return report_error(request.status());
  const Result<const Tokenizer*> tokenizer = model.tokenizer();
  RawPrinter printer(tokenizer.is_ok() ? tokenizer.value() : nullptr, flags.common.json);
  Generator generator(model);
  const Result<GenerateResult> result = generator.run(request.value(), [&](TokenId id) {
    printer.token(id);
    return true;
  });
  if (!result.is_ok()) return report_error(result.status());
  printer.finish();
  if (flags.stats) print_stats(result.value(), model.experts());
  if (flags.common.json) print_json(result.value(), printer.text(), nullptr, model.experts());
  return kExitOk;
}

// One turn of a chat; the reply goes to the printer and into the session's history.
Status run_turn(const RunFlags& flags, LoadedModel& model, ChatSession& session, const std::string& user_text) {
  Result<std::vector<TokenId>> prompt = session.prompt_for(user_text);
  if (!prompt.is_ok()) return prompt.status();
  const Result<GenerateRequest> request = make_request(flags, model, std::move(prompt).value());
  if (!request.is_ok()) return request.status();
  ChatPrinter printer(flags.common.json);
  const Result<ChatTurn> turn = session.run(request.value(), [&](const ReplyEvent& event) { printer.event(event); });
  if (!turn.is_ok()) return turn.status();
  printer.finish();
  if (flags.stats) print_stats(turn.value().result, model.experts());
  if (flags.common.json) print_json(turn.value().result, turn.value().text, &turn.value().reply, model.experts());
  return Status::ok();
}

int run_chat(const RunFlags& flags, LoadedModel& model, bool interactive) {
  Result<ChatSession> created = ChatSession::create(model);
  if (!created.is_ok()) return report_error(created.status());
  ChatSession session = std::move(created).value();
  if (!interactive) {
    if (flags.prompt.empty()) return report_error(Status::invalid("the prompt is empty: expected text"));
    const Status status = run_turn(flags, model, session, flags.prompt);
    return status.is_ok() ? kExitOk : report_error(status);
  }
  fmt::print(stderr, "Chat with {}; an empty line or end of input ends it.\n", model.dir());
  std::string line;
  while (fmt::print(stderr, "> "), std::getline(std::cin, line) && !line.empty()) {
    // A failed turn (context full, for example) ends the chat: its history is unchanged, and so would be the next try.
    const Status status = run_turn(flags, model, session, line);
    if (!status.is_ok()) return report_error(status);
  }
  return kExitOk;
}

int run_command(RunFlags flags) {
  const bool terminal = isatty(STDIN_FILENO) != 0;
  const bool interactive = !flags.has_prompt && !flags.has_tokens && terminal;
  if (!flags.has_prompt && !flags.has_tokens && !terminal) {
    flags.prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  }
  Result<std::unique_ptr<LoadedModel>> model =
      load_model(flags.model, flags.common, {.step_rows = flags.prefill_chunk});
  if (!model.is_ok()) return report_error(model.status());
  model.value()->bind_engine_thread();
  if (flags.chat || (interactive && !flags.raw)) return run_chat(flags, *model.value(), interactive);
  return run_raw(flags, *model.value());
}

}  // namespace

void register_run(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* command = app.add_subcommand("run", "Generate text, streaming; without a prompt on a terminal: chat");
  add_model_flags(command, flags->model, flags->common);
  CLI::Option* prompt = command->add_option("PROMPT", flags->prompt, "text (default: standard input)");
  CLI::Option* tokens = command->add_option("--tokens", flags->tokens, "prompt as token ids: 1,2,3");
  tokens->excludes(prompt);
  CLI::Option* chat = command->add_flag("--chat", flags->chat, "render the prompt as a user message of a chat");
  chat->excludes(tokens);
  command->add_flag("--raw", flags->raw, "continue the prompt as it is (the default with a prompt)")->excludes(chat);
  command->add_option("--max-tokens", flags->max_tokens, "tokens to generate at most")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->capture_default_str();
  command->add_option("--prefill-chunk", flags->prefill_chunk, "prompt tokens of one step")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->capture_default_str();
  command->add_flag("--ignore-eos", flags->ignore_eos, "generate past stop tokens");
  command->add_flag("--deterministic", flags->deterministic,
                    "a chat's every turn computes its whole history as a prompt: the reply then depends on the "
                    "messages alone, bit for bit, as with `serve --deterministic`");
  command->add_flag("--stats", flags->stats, "print TTFT, rates and peak memory on stderr");
  add_sampling_flags(command, flags->sampling);
  command->footer(
      "Examples:\n"
      "  tandem run models/my-k3 \"Name three primes.\" --chat --temperature 0\n"
      "  tandem run models/my-k3 --tokens 1,2,3 --max-tokens 16 --json");
  command->callback([flags, prompt, tokens, &exit_code] {
    flags->has_prompt = prompt->count() > 0;
    flags->has_tokens = tokens->count() > 0;
    exit_code = run_command(*flags);
  });
}

}  // namespace tandem::app
