// corpus/corpus_shards.h: the second stage of a data set: cleaned texts and generated conversations → token shards.
//
//   <output>/shards/prose-<n>.bin         documents of <output>/texts/ in a shuffled order, every token trained
//   <output>/shards/prose-test.bin        documents of <output>/held-out-documents/
//   <output>/shards/<chat name>-<n>.bin   conversations of a chat set of the recipe, example 0 first
//   <output>/shards/summary.json          counts, written last
//   Gaps of conversations are filled with paragraphs of the training texts, of a test set with held-out ones. The bytes
//   of a shard are a function of recipe, texts and tokenizer, whatever the number of threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "corpus/corpus_recipe.h"
#include "corpus/corpus_texts.h"
#include "text/tokenizer.h"

namespace tandem {

struct ShardSetCounts {
  std::string name;
  int64_t shards = 0;
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t trained_tokens = 0;
  int64_t longest_document = 0;
  int64_t left_out = 0;  // longer than the recipe allows
  double seconds = 0;
};

Result<std::vector<ShardSetCounts>> build_shards(const CorpusRecipe& recipe, const std::string& output_dir,
                                                 const Tokenizer& tokenizer, int num_threads,
                                                 const ProgressLine& progress);

std::string shard_summary_json(const std::vector<ShardSetCounts>& sets);

// Paragraphs that can stand in a gap: of 80 to 600 bytes, at most `limit`, drawn from all documents alike.
std::vector<std::string> gap_paragraphs(const std::vector<std::string>& documents, size_t limit);

}  // namespace tandem
