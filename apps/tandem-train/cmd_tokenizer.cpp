// apps/tandem-train/cmd_tokenizer.cpp: `tandem-train tokenizer`: texts → tiktoken.model and tokenizer_config.json with
// K3's control names.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "command.h"
#include "corpus/bpe_trainer.h"
#include "corpus/corpus_texts.h"

namespace tandem::app {
namespace {

constexpr int64_t kNumControl = 256;

struct TokenizerFlags {
  std::vector<std::string> texts;
  std::string output;
  int64_t vocab_size = 0;
  bool single_digits = false;
  bool json = false;
};

Status run(const TokenizerFlags& flags) {
  BpeTrainer trainer;
  for (const std::string& path : flags.texts) {
    auto documents = read_text_documents(path);
    if (!documents.is_ok()) return documents.status();
    for (const std::string& document : documents.value()) trainer.add_text(document);
    fmt::print(stderr, "{}: {} documents; {} bytes, {} distinct pieces so far\n", path, documents.value().size(),
               trainer.num_bytes(), trainer.num_distinct_pieces());
  }
  BpeTrainerOptions options;
  options.num_ranks = flags.vocab_size - kNumControl;
  options.single_digits = flags.single_digits;
  auto ranks = trainer.train(options);
  if (!ranks.is_ok()) return ranks.status();
  auto files = make_tokenizer_files(ranks.value());
  if (!files.is_ok()) return files.status();
  std::error_code error;
  std::filesystem::create_directories(flags.output, error);
  if (error) return Status::io(cat(flags.output, ": cannot make the folder: ", error.message()));
  TANDEM_RETURN_IF_ERROR(write_tokenizer_files(flags.output, files.value()));
  auto tokenizer = Tokenizer::load(flags.output, flags.vocab_size);
  if (!tokenizer.is_ok()) return tokenizer.status();
  if (flags.json) {
    const nlohmann::ordered_json out = {
        {"output", flags.output},        {"vocab_size", flags.vocab_size},
        {"ranks", ranks.value().size()}, {"control_ids", kNumControl},
        {"bytes", trainer.num_bytes()},  {"distinct_pieces", trainer.num_distinct_pieces()}};
    fmt::print("{}\n", out.dump());
  } else {
    fmt::print("{}: vocabulary {} ({} ranks, {} control ids) from {} bytes\n", flags.output, flags.vocab_size,
               ranks.value().size(), kNumControl, trainer.num_bytes());
  }
  return Status::ok();
}

}  // namespace

void register_tokenizer(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<TokenizerFlags>();
  CLI::App* command = app.add_subcommand("tokenizer", "Learn a byte-level BPE vocabulary from texts");
  command->footer(
      "Example:\n  tandem-train tokenizer texts/*.txt --output tokenizer --vocab-size 3072 --single-digits");
  command->add_option("texts", flags->texts, "Text files; a form feed ends a document")->required();
  command->add_option("-o,--output", flags->output, "Folder for tiktoken.model and tokenizer_config.json")->required();
  command->add_option("--vocab-size", flags->vocab_size, "Tokens in all: ranks and 256 control ids")
      ->required()
      ->check(CLI::Range(int64_t{512}, int64_t{1} << 24));
  command->add_flag("--single-digits", flags->single_digits, "No token holds two digits");
  command->add_flag("--json", flags->json, "Print the result as JSON");
  command->callback([flags, &exit_code] {
    const Status status = run(*flags);
    exit_code = status.is_ok() ? kExitOk : report_error(status);
  });
}

}  // namespace tandem::app
