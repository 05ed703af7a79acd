// apps/tandem-train/cmd_corpus.cpp: `tandem-train corpus`: a recipe's sources → cleaned texts and a manifest, then
// texts and generated conversations → token shards.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/cat.h"
#include "base/read_file.h"
#include "command.h"
#include "corpus/corpus_shards.h"
#include "corpus/corpus_texts.h"

namespace tandem::app {
namespace {

struct CorpusFlags {
  std::string recipe;
  std::string input;
  std::string output;
  std::string tokenizer;
  std::string stage = "all";
  int threads = 0;
  bool json = false;
};

void print_line(const std::string& line) { fmt::print(stderr, "{}\n", line); }

// The tokenizer's vocabulary size is that of its files: ranks and 256 control ids.
Result<Tokenizer> load_tokenizer(const std::string& dir) {
  auto ranks = read_file(dir + "/tiktoken.model", "a tokenizer's rank file");
  if (!ranks.is_ok()) return ranks.status();
  return Tokenizer::load(dir, std::ranges::count(ranks.value(), '\n') + 256);
}

Status run(const CorpusFlags& flags) {
  auto text = read_file(flags.recipe, "a corpus recipe");
  if (!text.is_ok()) return text.status();
  auto recipe = parse_corpus_recipe(text.value(), flags.recipe);
  if (!recipe.is_ok()) return recipe.status();
  if (flags.stage != "texts" && flags.tokenizer.empty()) {
    return Status::invalid("--tokenizer: expected a folder with tiktoken.model for the stage \"shards\", found none");
  }
  nlohmann::ordered_json out = {{"output", flags.output}};
  if (flags.stage != "shards") {
    const std::string folder = std::filesystem::path(flags.recipe).parent_path().string();
    const std::string input = !flags.input.empty() ? flags.input : folder.empty() ? "." : folder;
    auto counts = build_texts(recipe.value(), input, flags.output, print_line);
    if (!counts.is_ok()) return counts.status();
    const TextCounts& c = counts.value();
    out["texts"] = {{"train_documents", c.train_documents},
                    {"train_bytes", c.train_bytes},
                    {"held_out_documents", c.held_out_documents},
                    {"held_out_bytes", c.held_out_bytes}};
    if (!flags.json) {
      fmt::print("texts: {} documents, {} bytes; held out: {} documents, {} bytes\n", c.train_documents, c.train_bytes,
                 c.held_out_documents, c.held_out_bytes);
    }
  }
  if (flags.stage != "texts") {
    auto tokenizer = load_tokenizer(flags.tokenizer);
    if (!tokenizer.is_ok()) return tokenizer.status();
    const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    auto sets = build_shards(recipe.value(), flags.output, tokenizer.value(), flags.threads > 0 ? flags.threads : cores,
                             print_line);
    if (!sets.is_ok()) return sets.status();
    out["shards"] = nlohmann::ordered_json::parse(shard_summary_json(sets.value()));
    for (const ShardSetCounts& set : sets.value()) {
      if (flags.json) break;
      fmt::print("{}: {} shards, {} documents, {} tokens, {:.1f} % trained, {:.0f} tokens/s\n", set.name, set.shards,
                 set.documents, set.tokens,
                 100 * static_cast<double>(set.trained_tokens) / static_cast<double>(std::max<int64_t>(1, set.tokens)),
                 static_cast<double>(set.tokens) / std::max(1e-9, set.seconds));
    }
  }
  if (flags.json) fmt::print("{}\n", out.dump());
  return Status::ok();
}

}  // namespace

void register_corpus(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<CorpusFlags>();
  CLI::App* command = app.add_subcommand("corpus", "Make a data set: clean texts, generate chats, write token shards");
  command->footer(
      "Example:\n"
      "  tandem-train corpus recipes/nano/data.json --input unpacked --output data --stage texts\n"
      "  tandem-train tokenizer data/texts/*.txt --output data/tokenizer --vocab-size 3072 --single-digits\n"
      "  tandem-train corpus recipes/nano/data.json --output data --tokenizer data/tokenizer --stage shards");
  command->add_option("recipe", flags->recipe, "JSON recipe")->required();
  command->add_option("--input", flags->input, "Folder that the recipe's files lie in (the recipe's own folder)");
  command->add_option("-o,--output", flags->output, "Folder for texts, held-out texts, manifest and shards")
      ->required();
  command->add_option("--tokenizer", flags->tokenizer, "Folder with tiktoken.model and tokenizer_config.json");
  command->add_option("--stage", flags->stage, "texts, shards or all")
      ->check(CLI::IsMember({"texts", "shards", "all"}));
  command->add_option("--threads", flags->threads, "Threads (one a core)")->check(CLI::Range(0, 1024));
  command->add_flag("--json", flags->json, "Print the result as JSON");
  command->callback([flags, &exit_code] {
    const Status status = run(*flags);
    exit_code = status.is_ok() ? kExitOk : report_error(status);
  });
}

}  // namespace tandem::app
