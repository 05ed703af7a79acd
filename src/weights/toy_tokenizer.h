// weights/toy_tokenizer.h: the tokenizer files of a random checkpoint of any vocabulary size.
//
//   n = vocab_size − min(256, vocab_size − 256) ranks: the 256 single bytes, then the two-byte strings, then the
//   three-byte strings, in lexicographic order. Behind them the control block: K3's control names at their K3 offsets
//   (id − 163584); in a block of fewer than 256 ids they are packed in table order, and those that do not fit are left
//   out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem {

struct ControlName {
  int64_t offset = 0;  // from the first control id of K3
  std::string_view text;
  bool special = true;
};
std::span<const ControlName> k3_control_names();  // in table order: by offset

struct ToyTokenizer {
  struct NamedId {
    int64_t id = 0;
    std::string_view text;
    bool special = true;
  };
  int64_t vocab_size = 0;
  int64_t num_ranks = 0;
  std::vector<NamedId> control;

  std::optional<int64_t> id_of(std::string_view control_name) const;
  std::string rank_file() const;              // tiktoken.model
  std::string tokenizer_config_json() const;  // tokenizer_config.json
  std::string generation_config_json() const;
};

// Nothing for a vocabulary below 256, which cannot hold the bytes, or above what strings of three bytes can fill.
std::optional<ToyTokenizer> make_toy_tokenizer(int64_t vocab_size);

// `config_json` with bos, eos, pad and media ids set to the tokenizer's wherever the file states them (bos, eos and pad
// always; media for a K3 config); an id that the tokenizer has no name for is removed, as is, without a tokenizer,
// every id outside the vocabulary. All other fields are kept, in their order.
Result<std::string> config_with_token_ids(std::string_view config_json, int64_t vocab_size,
                                          const std::optional<ToyTokenizer>& tokenizer);

}  // namespace tandem
