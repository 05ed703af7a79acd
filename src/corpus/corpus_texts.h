// corpus/corpus_texts.h: the first stage of a data set: source files → cleaned texts on disk, apart for training and
// held out, with the manifest.
//
//   <output>/texts/<package>.txt            training documents, each ended by a form feed (the cleaner leaves none)
//   <output>/texts/chat-sample.txt          text of conversations, for the tokenizer only; when the recipe asks for it
//   <output>/held-out-documents/<package>.txt   held-out documents, in the same form
//   <output>/held-out/<package>.txt         the same texts joined by an empty line, to measure bits per byte on
//   <output>/manifest.json                  written last (corpus_builder.h)
//   Every file appears complete or not at all. Threading: one owner.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "corpus/corpus_recipe.h"

namespace tandem {

struct TextCounts {
  int64_t train_documents = 0, train_bytes = 0;
  int64_t held_out_documents = 0, held_out_bytes = 0;
};

using ProgressLine = std::function<void(const std::string& line)>;

Result<TextCounts> build_texts(const CorpusRecipe& recipe, const std::string& input_dir, const std::string& output_dir,
                               const ProgressLine& progress);

// The documents of a file of form-feed-ended texts.
Result<std::vector<std::string>> read_text_documents(const std::string& path);

// Regular files below `dir` whose path relative to it matches, in path order.
Result<std::vector<std::string>> matching_files(const std::string& dir, const std::vector<std::string>& patterns);

}  // namespace tandem
