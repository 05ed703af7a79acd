// apps/tandem/cmd_tokenize.cpp: `tandem tokenize`: text ↔ ids by a checkpoint's own tokenizer files, and chat prompts.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "base/read_file.h"
#include "base/utf8.h"
#include "command.h"
#include "config/model_config.h"
#include "text/chat_format.h"
#include "text/chat_request.h"
#include "text/reply_json.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"

namespace tandem::app {
namespace {

struct TokenizeFlags {
  CommonFlags common;
  std::string model;
  std::string text;
  std::string decode;
  std::string chat_file;
  bool control = false;
  bool bare = false;
  bool has_text = false;
  bool has_decode = false;
};

struct Tokenized {
  std::string text;
  std::vector<TokenId> ids;
};

std::string read_all(std::istream& in) {
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

Result<std::string> read_input(const std::string& path) {
  if (path == "-") return read_all(std::cin);
  return read_file(path, "a JSON chat request");
}

Result<std::vector<TokenId>> parse_ids(std::string_view list, const Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    std::string_view item = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    const size_t first = item.find_first_not_of(" \t\r\n");
    if (first != std::string_view::npos) item = item.substr(first, item.find_last_not_of(" \t\r\n") - first + 1);
    TokenId id;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), id.value);
    if (error != std::errc{} || end != item.data() + item.size() || !tokenizer.contains(id)) {
      return Status::invalid(cat("--decode: expected ids of 0 to ", tokenizer.vocab_size() - 1,
                                 " separated by commas, found \"", item, "\""));
    }
    ids.push_back(id);
  }
  return ids;
}

Result<Tokenized> render_chat_file(const TokenizeFlags& flags, const Tokenizer& tokenizer) {
  auto json = read_input(flags.chat_file);
  if (!json.is_ok()) return json.status();
  auto request = flags.bare ? parse_bare_request(json.value()) : parse_chat_request(json.value());
  if (!request.is_ok()) return request.status();
  auto segments = render_chat(tokenizer, request.value());
  if (!segments.is_ok()) return segments.status();
  return Tokenized{joined_text(segments.value()), encode_segments(tokenizer, segments.value())};
}

Result<Tokenized> tokenize(const TokenizeFlags& flags, const Tokenizer& tokenizer) {
  if (!flags.chat_file.empty()) return render_chat_file(flags, tokenizer);
  if (flags.has_decode) {
    auto ids = parse_ids(flags.decode, tokenizer);
    if (!ids.is_ok()) return ids.status();
    StreamDecoder decoder(tokenizer, /*skip_special=*/false);
    Tokenized out;
    for (const TokenId id : ids.value()) out.text += decoder.append(id);
    out.text += decoder.flush();
    out.ids = std::move(ids).value();
    return out;
  }
  Tokenized out;
  out.text = flags.has_text ? flags.text : read_all(std::cin);
  out.ids = flags.control ? tokenizer.encode_control(out.text) : tokenizer.encode_text(out.text);
  return out;
}

void print_json(const Tokenized& result, const Tokenizer& tokenizer) {
  nlohmann::ordered_json out;
  out["text"] = replace_invalid_utf8(result.text);
  out["tokens"] = nlohmann::ordered_json::array();
  out["pieces"] = nlohmann::ordered_json::array();
  for (const TokenId id : result.ids) {
    out["tokens"].push_back(id.value);
    out["pieces"].push_back(nlohmann::ordered_json::parse(piece_json(tokenizer.token_bytes(id))));
  }
  fmt::print("{}\n", out.dump());
}

void print_table(const Tokenized& result, const Tokenizer& tokenizer) {
  for (const TokenId id : result.ids) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    std::string shown = is_valid_utf8(bytes) ? nlohmann::json(bytes).dump() : "";
    for (const char c : is_valid_utf8(bytes) ? std::string_view() : bytes) {
      shown += fmt::format("<{:02X}>", static_cast<unsigned char>(c));
    }
    fmt::print("{:>7}  {}{}\n", id.value, shown, tokenizer.is_control(id) ? "  control" : "");
  }
  fmt::print("{} tokens\n", result.ids.size());
}

int run_tokenize(const TokenizeFlags& flags) {
  const auto config = load_model_config(flags.model);
  if (!config.is_ok()) return report_error(config.status());
  const auto tokenizer = Tokenizer::load(flags.model, config.value().vocab_size);
  if (!tokenizer.is_ok()) return report_error(tokenizer.status());
  const auto result = tokenize(flags, tokenizer.value());
  if (!result.is_ok()) return report_error(result.status());
  if (flags.common.json) {
    print_json(result.value(), tokenizer.value());
  } else if (flags.has_decode) {
    fmt::print("{}\n", result.value().text);
  } else {
    print_table(result.value(), tokenizer.value());
  }
  return kExitOk;
}

}  // namespace

void register_tokenize(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* command = app.add_subcommand("tokenize", "show the ids and pieces of a text or of a chat prompt");
  command->add_option("MODEL", flags->model, "folder with config.json, tiktoken.model and tokenizer_config.json")
      ->required();
  CLI::Option* text = command->add_option("TEXT", flags->text, "the text (default: standard input)");
  CLI::Option* decode = command->add_option("--decode", flags->decode, "ids to turn into text: 1,2,3");
  CLI::Option* control = command->add_flag("--control", flags->control,
                                           "match control names such as <|open|> in the text (default: plain text)");
  CLI::Option* chat = command->add_option(
      "--chat", flags->chat_file, "JSON body of /v1/chat/completions to render as a prompt, - for standard input");
  CLI::Option* bare = command->add_flag("--bare", flags->bare,
                                        "with --chat: add no defaults; the file is the low-level encoder's input");
  decode->excludes(text)->excludes(control)->excludes(chat);
  chat->excludes(text)->excludes(control);
  bare->needs(chat);
  add_common_flags(command, flags->common);
  command->footer(
      "Examples:\n  tandem tokenize models/my-k3 \"Name three primes.\" --json\n  tandem tokenize models/my-k3 "
      "--decode 1,2,3\n"
      "  tandem tokenize models/my-k3 --chat request.json");
  command->callback([flags, text, decode, &exit_code] {
    flags->has_text = text->count() > 0;
    flags->has_decode = decode->count() > 0;
    exit_code = run_tokenize(*flags);
  });
}

}  // namespace tandem::app
