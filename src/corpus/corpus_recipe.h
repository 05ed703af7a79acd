// corpus/corpus_recipe.h: what a data set is made of, as read from a JSON recipe (recipes/nano/data.json).
//
//   {"sources": [{"package", "version" or "version_file", "license", "origin", "files": [patterns], "format",
//                 "prose_only", "entries_per_document", "max_bytes"}],
//    "clean": {"collapse_spaces", "min_document_bytes", "min_letter_fraction", "min_paragraph_bytes"},
//    "held_out_one_of": 25,
//    "chat_sample": {"examples", "seed"},                        (optional: chat text for the tokenizer to learn from)
//    "prose_shards": {"shard_tokens", "test_documents_tokens"},
//    "chats": [{"name", "split", "seed", "tokens", "shard_tokens", "max_document_tokens", "gap": [from, to],
//               "num_questions": [from, to], "loss": "assistant" or "all", "shares": {family: share}}]}
//   Every key but "sources" and "files" has a default. An unknown key, a wrong type or a value out of range is refused
//   by its name. Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "corpus/chat_generator.h"
#include "corpus/corpus_builder.h"
#include "corpus/text_extract.h"

namespace tandem {

struct SourceRecipe {
  CorpusSource source;
  std::string version_file;        // below the input folder; its first line is the version
  std::vector<std::string> files;  // patterns below the input folder; * matches any characters, also '/'
  TextFormat format = TextFormat::kText;
  bool prose_only = false;  // paragraphs_of_prose()
  int64_t entries_per_document = 40;
  int64_t max_bytes = INT64_MAX;  // of cleaned text; documents behind are left out
};

struct ChatSetRecipe {
  std::string name;
  ChatSplit split = ChatSplit::kTrain;
  uint64_t seed = 1;
  int64_t tokens = 1000000;  // examples are made until there are as many
  int64_t shard_tokens = 16000000;
  int64_t max_document_tokens = 2048;  // a longer example is left out
  int64_t min_gap_tokens = 8;
  int64_t max_gap_tokens = 1024;
  int64_t min_questions = 1;
  int64_t max_questions = 1;
  bool all_tokens = false;  // trained: every token, and not the assistant's alone
  std::array<int, kNumChatFamilies> shares = kDefaultChatShares;
};

struct CorpusRecipe {
  std::vector<SourceRecipe> sources;
  CorpusOptions clean;
  uint64_t held_out_one_of = 25;
  int64_t sample_examples = 0;
  uint64_t sample_seed = 1;
  int64_t prose_shard_tokens = 16000000;
  std::vector<ChatSetRecipe> chats;
};

// `origin` names the recipe in messages.
Result<CorpusRecipe> parse_corpus_recipe(std::string_view json, const std::string& origin);

}  // namespace tandem
