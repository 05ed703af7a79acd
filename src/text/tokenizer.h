// text/tokenizer.h: text ↔ token ids, by a tiktoken rank file and a block of control ids behind its ranks.
//
//   ids 0 .. num_ranks-1            byte strings of <model>/tiktoken.model, rank = id
//   ids num_ranks .. vocab_size-1   control ids; names from added_tokens_decoder of <model>/tokenizer_config.json,
//                                   else <|reserved_token_{id}|>. All are control ids, whatever their `special` flag.
//
//   encode_text    ordinary text: no control id is ever produced, `<|open|>` spelled out becomes ordinary ids
//   encode_control control names are found first (earliest, then longest), the text between them is ordinary
//
//   Any bytes can be encoded. Bytes that are not UTF-8 are kept as they are, each as a symbol of no class, so that
//   decode(encode_text(s)) == s for every byte string. No BOS is added anywhere.
//   Time is O(n log n) in the length of the text, whatever the text. Move-only, immutable after load: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace tandem {

class Tokenizer {
 public:
  // Reads <model_dir>/tiktoken.model and <model_dir>/tokenizer_config.json. kNotFound names a missing file;
  // kInvalidArgument names what is wrong: bad base64, a rank outside 0..n-1, a duplicate rank or byte string, a missing
  // single byte, added_tokens_decoder that is no object, an id outside the control block, a duplicate control name.
  static Result<Tokenizer> load(const std::string& model_dir, int64_t vocab_size);

  // The same from the contents of the two files; `origin` prefixes the file names in messages.
  static Result<Tokenizer> from_memory(std::string_view rank_file_text, std::string_view tokenizer_config_json,
                                       int64_t vocab_size, std::string_view origin = "");

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  std::vector<TokenId> encode_text(std::string_view text) const;
  std::vector<TokenId> encode_control(std::string_view text) const;
  // The same, appended to `ids`.
  void encode_text_to(std::string_view text, std::vector<TokenId>& ids) const;
  void encode_control_to(std::string_view text, std::vector<TokenId>& ids) const;

  // The pieces that BPE is applied to, for diagnosis: their concatenation is `text`.
  std::vector<std::string_view> pre_tokenize(std::string_view text) const;

  // The bytes of the ids, one after the other; they need not be valid UTF-8 (StreamDecoder gives text). Control ids
  // give their name, or nothing with skip_special. kInvalidArgument names an id outside the vocabulary.
  Result<std::string> decode(std::span<const TokenId> ids, bool skip_special) const;

  bool contains(TokenId id) const { return id.value >= 0 && id.value < vocab_size(); }
  bool is_control(TokenId id) const { return id.value >= num_ranks() && id.value < vocab_size(); }
  std::string_view token_bytes(TokenId id) const;  // the name for a control id; contains(id) is required
  std::optional<TokenId> control_id(std::string_view name) const;

  int64_t num_ranks() const;
  int64_t vocab_size() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);

  std::unique_ptr<const Impl> impl_;
};

}  // namespace tandem
