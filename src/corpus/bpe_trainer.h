// corpus/bpe_trainer.h: learns the ranks of a byte-level BPE vocabulary from text.
//
//   The text is cut into the pieces that the tokenizer will cut it into (text/pretokenizer.h); no token crosses a
//   piece. Ranks 0..255 are the single bytes in byte order. Then, until the vocabulary is full:
//     1  pairs whose bytes together are already a token are merged, the lowest rank first, as the encoder will do
//     2  the adjacent pair that occurs most often becomes a token and is merged everywhere, from left to right in a
//        piece; of equals the one with the lowest (left id, right id)
//   The same text in any order and cut gives the same ranks. Algorithm: pair counts with the pieces they occur in, and
//   a heap with late correction, so that a merge costs what it changes (Sennrich, Haddow and Birch, 2016, made
//   incremental). Memory is linear in the distinct pieces.
//   Threading: one owner.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "text/pretokenizer.h"

namespace tandem {

struct BpeTrainerOptions {
  int64_t num_ranks = 0;        // 256 or more
  int64_t min_pair_count = 2;   // a pair that occurs less often never becomes a token
  size_t max_token_bytes = 32;  // keeps rulers of dashes and the like out of the vocabulary
  bool single_digits = false;   // no learned token holds two ASCII digits: a model then reads numbers digit by digit
};

class BpeTrainer {
 public:
  // Counts the pieces of a text that is encoded alone. `weight`: as if it came that many times.
  void add_text(std::string_view text, int64_t weight = 1);

  uint64_t num_bytes() const { return num_bytes_; }
  size_t num_distinct_pieces() const { return piece_counts_.size(); }

  // The byte strings by rank. kInvalidArgument when the options are wrong or the text has too few pairs: the message
  // says how many ranks it would give.
  Result<std::vector<std::string>> train(const BpeTrainerOptions& options) const;

 private:
  struct PieceHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const;
  };

  PreTokenizer pre_tokenizer_;
  std::unordered_map<std::string, int64_t, PieceHash, std::equal_to<>> piece_counts_;
  uint64_t num_bytes_ = 0;
};

struct TokenizerFiles {
  std::string rank_file;              // tiktoken.model
  std::string tokenizer_config_json;  // tokenizer_config.json
  int64_t vocab_size = 0;
};

// The files of a tokenizer of these ranks with K3's 256 control ids behind them (weights/toy_tokenizer.h).
Result<TokenizerFiles> make_tokenizer_files(const std::vector<std::string>& ranks);

// Writes tiktoken.model and tokenizer_config.json into an existing folder, each complete or not at all.
Status write_tokenizer_files(const std::string& dir, const TokenizerFiles& files);

}  // namespace tandem
